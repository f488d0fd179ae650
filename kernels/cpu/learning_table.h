// The learning n-gram table of kernels/learning_table.py: how a context is found, and what follows it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>

namespace dart {

constexpr int kWays = 4, kProbes = 4, kLongest = 8;
constexpr int kContextLengths[] = {1, 2, 3, 4, 6, 8};
constexpr int kContexts = 6, kMostSuccessors = kContexts * kWays;

inline uint64_t mix64(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

// Keys of the contexts that end [first, last), by length; returns how many fit.
inline int context_keys(const int64_t* first, const int64_t* last, uint64_t* keys) {
  uint64_t key = 0;
  int found = 0;
  for (int used = 1; used <= kLongest && last - used >= first; ++used) {
    key = mix64(key + static_cast<uint64_t>(last[-used]) + 1);
    if (used == kContextLengths[found]) keys[found++] = key | 1;
  }
  return found;
}

struct LearningTable {
  uint64_t* keys;
  int32_t* tokens;
  int32_t* counts;
  uint64_t mask;

  int64_t find(uint64_t key) const {
    for (int i = 0; i < kProbes; ++i) {
      const uint64_t slot = ((key >> 1) + i) & mask;
      if (keys[slot] == key) return static_cast<int64_t>(slot);
    }
    return -1;
  }
};

inline LearningTable learning_table(const at::Tensor& keys, const at::Tensor& tokens, const at::Tensor& counts) {
  TORCH_CHECK(keys.dtype() == at::kLong && keys.is_contiguous(), "keys must be a contiguous int64 tensor");
  const int64_t slots = keys.numel();
  TORCH_CHECK(slots >= kProbes && (slots & (slots - 1)) == 0, "the table must have a power of two of slots, not ", slots);
  for (const at::Tensor& ways : {tokens, counts}) {
    TORCH_CHECK(ways.dtype() == at::kInt && ways.is_contiguous() && ways.numel() == slots * kWays,
                "tokens and counts must be contiguous int32 [slots, 4] tensors");
  }
  return {reinterpret_cast<uint64_t*>(keys.data_ptr<int64_t>()), tokens.data_ptr<int32_t>(),
          counts.data_ptr<int32_t>(), static_cast<uint64_t>(slots - 1)};
}

struct Successor {
  double probability;
  int64_t token;
};

// Every token known to follow [first, last) with its probability, in no order; returns how many, ≤ kMostSuccessors.
// `left` is the probability that no matching context gives to a token it knows: 1 where none matches.
inline int mixture(const LearningTable& table, const int64_t* first, const int64_t* last, Successor* mixed,
                   double& left) {
  uint64_t context[kContexts];
  int size = 0;
  left = 1.0;
  for (int i = context_keys(first, last, context) - 1; i >= 0; --i) {
    const int64_t slot = table.find(context[i]);
    if (slot < 0) continue;
    const int32_t* ways = table.tokens + slot * kWays;
    const int32_t* counts = table.counts + slot * kWays;
    int total = 0, distinct = 0;
    for (int way = 0; way < kWays; ++way) {
      total += counts[way];
      distinct += counts[way] > 0;
    }
    if (total == 0) continue;
    for (int way = 0; way < kWays; ++way) {
      if (counts[way] == 0) continue;
      int at = 0;
      while (at < size && mixed[at].token != ways[way]) ++at;
      if (at == size) mixed[size++] = {0.0, ways[way]};
      mixed[at].probability += left * counts[way] / (total + distinct);
    }
    left *= static_cast<double>(distinct) / (total + distinct);
  }
  return size;
}

}  // namespace dart
