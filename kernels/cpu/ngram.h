// The n-gram table of kernels/ngram_lookup.py: how a context is found, and a token in it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>

namespace dart {

// An int32 or int64 array.
struct Index {
  const int32_t* narrow;
  const int64_t* wide;
  int64_t operator[](int64_t i) const { return narrow ? narrow[i] : wide[i]; }
};

struct NgramTable {
  static constexpr int kTokenBits = 20, kKeyBits = 60, kMaxOrder = 5;
  static constexpr int64_t kKeyMask = (int64_t(1) << kKeyBits) - 1;

  int order, shift;
  Index bucket, first;
  const int64_t* context;
  const int32_t *total, *token, *count;
  int64_t contexts, pairs;

  // A context's tokens: places [start, end) of `token` and `count`.
  struct List {
    int64_t start, end;
    float total;
  };

  static uint64_t mixed(uint64_t x) {
    x = x * 0x9E3779B97F4A7C1ull & kKeyMask;
    x ^= x >> 31;
    x = x * 0xD1B54A32D192ED3ull & kKeyMask;
    return x ^ x >> 30;
  }

  // The key of `length` ≤ 4 tokens, or −1.
  static int64_t key(const int64_t* tokens, int length) {
    uint64_t packed = 0;
    for (int i = 0; i < length; ++i)
      if (uint64_t(tokens[i]) >> kTokenBits) return -1;
    for (int i = std::max(0, length - 3); i < length; ++i) packed = packed << kTokenBits | uint64_t(tokens[i]);
    if (length > 3) packed = (mixed(packed) ^ uint64_t(tokens[0] + 1) * 0xD1B54A32D192ED3ull) & kKeyMask;
    return int64_t(mixed(packed) << 2 | uint64_t(length - 1));
  }

  void prefetch_bucket(int64_t key) const {
    if (key < 0) return;
    const int64_t slot = key >> shift;
    __builtin_prefetch(bucket.narrow ? static_cast<const void*>(bucket.narrow + slot) : bucket.wide + slot);
  }

  // Stays inside the arrays whatever they hold: a damaged file gives wrong drafts, not a crash.
  List find(int64_t key) const {
    if (key < 0) return {0, 0, 1.0f};
    const int64_t slot = key >> shift;
    const int64_t low = std::clamp<int64_t>(bucket[slot], 0, contexts);
    const int64_t high = std::clamp<int64_t>(bucket[slot + 1], low, contexts);
    const int64_t* place = std::lower_bound(context + low, context + high, key);
    if (place == context + high || *place != key) return {0, 0, 1.0f};
    const int64_t row = place - context;
    const int64_t start = std::clamp<int64_t>(first[row], 0, pairs);
    return {start, std::clamp<int64_t>(first[row + 1], start, pairs), float(std::max(total[row], 1))};
  }

  // The relative frequency of a token, or −1 where it was not seen.
  float frequency(const List& list, int64_t wanted) const {
    const int32_t* place = std::lower_bound(token + list.start, token + list.end, wanted);
    if (place == token + list.end || *place != wanted) return -1.0f;
    return std::clamp(float(count[place - token]) / list.total, 0.0f, 1.0f);
  }
};

// `arrays` are bucket, context, first, total, token, count.
NgramTable ngram_table(at::TensorList arrays, int64_t order, int64_t bits);

}  // namespace dart
