// The stages of a decoder layer and how the threads of a pass share them.
//
// A layer is five stages: norm, qkv, rotary and cache; attention; output projection and residual; norm, gate and up;
// SiLU, down projection and residual. A stage ends when its work is done, not when every thread has come: a thread that
// the operating system took off its core is not waited for, the others do its part. Up to kPrivateRows rows every thread
// quantises the activations for itself, which costs less than one more stage.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "attention.h"
#include "attention_join.h"
#include "linear4.h"

namespace dart {

constexpr int kPrivateRows = 4;
constexpr size_t kLine = 64;
constexpr int kSpins = 1000;  // about 20 µs; a stage of a small model takes 5

struct Layer {
  const float *input_norm, *post_norm, *q_norm, *k_norm, *qkv_bias;
  Weight qkv, out, gate_up, down;
  float *keys, *values;  // [kv_heads, slots, head_dim]
};

struct Shape {
  int rows, hidden, heads, kv_heads, head_dim, middle, slots;
  float eps;
  int group() const { return heads / kv_heads; }
};

// A matrix of activations in int8, rows in blocks.
struct Quantised {
  uint8_t* q;
  float* scale;
};

// The state of one pass, shared by its threads.
struct Pass {
  const InstructionSet& set;
  const Shape shape;
  const Tree& tree;
  const float *cosine, *sine;  // [rows, head_dim / 2]
  float* hidden;               // [rows, hidden]
  float* query;                // [kv_heads, rows, group, head_dim]
  float* middle;               // [rows, 2 · middle], gate and up
  float *sums, *most, *total;  // [kv_heads, splits, rows, group(, head_dim)]
  int first_split, splits;     // splits [first_split, splits) hold keys someone sees
  Quantised common;            // for more than kPrivateRows rows
  int* counters;               // [stages, threads + 1, kLine / 4], see Worker::share

  int blocks() const { return (shape.rows + set.max_rows - 1) / set.max_rows; }
  int block_start(int b) const { return b * shape.rows / blocks(); }
  int block_of(int r) const {
    int b = r * blocks() / shape.rows;
    while (block_start(b + 1) <= r) b++;
    return b;
  }
};

struct Worker {
  Pass& pass;
  const int id, threads;
  Quantised own;
  // [max(hidden, middle, heads · head_dim)], [rows, head_dim], [splits], attention_scratch
  float *row, *head, *weights, *scratch;
  int stage = 0;

  // Calls work(i) for this thread's share of 0 … count - 1 and returns when all of them are done. Each thread's part has
  // a counter, from which it and those who have finished theirs take one after the other; one more counts what is done.
  template <class Work>
  void share(int count, Work work) {
    const auto counter = [&, base = size_t(stage++) * (threads + 1)](int i) {
      return std::atomic_ref<int>(pass.counters[(base + i) * (kLine / sizeof(int))]);
    };
    const auto done = counter(threads);
    for (int k = 0; k < threads; k++) {
      const int owner = (id + k) % threads;
      const int begin = int(int64_t(count) * owner / threads), end = int(int64_t(count) * (owner + 1) / threads);
      const auto next = counter(owner);
      int taken = 0;
      while (next.load(std::memory_order_relaxed) < end - begin) {
        const int i = begin + next.fetch_add(1, std::memory_order_relaxed);
        if (i >= end) break;
        work(i);
        taken++;
      }
      if (taken) done.fetch_add(taken, std::memory_order_acq_rel);
    }
    for (int spins = 0; done.load(std::memory_order_acquire) < count; spins++) {
      if (spins > kSpins) std::this_thread::yield();  // more threads than cores
#if defined(__x86_64__)
      else __builtin_ia32_pause();
#endif
    }
  }

  // int8 activations of row `r`, from fp32.
  void quantise(const Weight& w, const Quantised& to, int r, const float* x) {
    const int block = pass.block_of(r), first = pass.block_start(block);
    uint8_t* q = to.q + first * row_bytes(w.k(), w.group);
    to.scale[r] = pass.set.quantise(x, r - first, pass.block_start(block + 1) - first, w, q) * w.unit;
  }

  // unit(i, x) for i in 0 … units - 1, where x are the int8 rows that `fill(row)` gives in fp32.
  template <class Fill, class Unit>
  void linear(const Weight& w, int units, Fill fill, Unit unit) {
    const bool alone = pass.shape.rows <= kPrivateRows || threads == 1;
    const Quantised x = alone ? own : pass.common;
    bool ready = !alone;
    if (!alone) share(pass.shape.rows, [&](int r) { quantise(w, x, r, fill(r)); });
    share(units, [&](int i) {
      if (!ready)
        for (int r = 0; r < pass.shape.rows; r++) quantise(w, x, r, fill(r));
      ready = true;
      unit(i, x);
    });
  }

  // done(row, columns) gets the 32 columns of tile `t` of every row.
  template <class Done>
  void tile(const Weight& w, int t, const Quantised& x, Done done) {
    alignas(kLine) float sums[kMaxRows * kTile];
    for (int b = 0; b < pass.blocks(); b++) {
      const int first = pass.block_start(b), count = pass.block_start(b + 1) - first;
      pass.set.tile(w, w.tile(t), x.q + first * row_bytes(w.k(), w.group), count, sums, b == 0);
      for (int r = 0; r < count; r++) {
        float* columns = sums + r * kTile;
        for (int c = 0; c < kTile; c++) columns[c] *= x.scale[first + r];
        done(first + r, columns);
      }
    }
  }

  const float* normed(int r, const float* weight) {
    const Shape& s = pass.shape;
    pass.set.rms_norm(pass.hidden + size_t(r) * s.hidden, weight, s.hidden, s.eps, row);
    return row;
  }

  // `tap`: where the hidden states that enter the layer go, null for nowhere.
  void qkv(const Layer& layer, float* tap, size_t tap_stride) {
    const Shape& s = pass.shape;
    const int tiles = s.head_dim / kTile;
    const auto fill = [&](int r) { return normed(r, layer.input_norm); };
    linear(layer.qkv, s.heads + 2 * s.kv_heads, fill, [&](int unit, const Quantised& x) {
      if (tap && unit == 0)
        for (int r = 0; r < s.rows; r++) std::copy_n(pass.hidden + size_t(r) * s.hidden, s.hidden, tap + r * tap_stride);
      for (int t = 0; t < tiles; t++)
        tile(layer.qkv, unit * tiles + t, x, [&](int r, const float* columns) {
          std::copy_n(columns, kTile, head + r * s.head_dim + t * kTile);
        });
      for (int r = 0; r < s.rows; r++) place_head(layer, unit, r, head + r * s.head_dim);
    });
  }

  // Bias, norm and rotation of one head of one row, and its place: query, key cache or value cache.
  void place_head(const Layer& layer, int unit, int r, float* x) {
    const Shape& s = pass.shape;
    const int d = s.head_dim, half = d / 2, group = s.group();
    if (layer.qkv_bias)
      for (int i = 0; i < d; i++) x[i] += layer.qkv_bias[unit * d + i];
    const size_t slot = size_t(pass.tree.length + r) * d;
    if (unit >= s.heads + s.kv_heads) {
      std::copy_n(x, d, layer.values + size_t(unit - s.heads - s.kv_heads) * s.slots * d + slot);
      return;
    }
    const bool is_query = unit < s.heads;
    const float* norm = is_query ? layer.q_norm : layer.k_norm;
    if (norm) pass.set.rms_norm(x, norm, d, s.eps, x);
    const float factor = is_query ? 1.0f / std::sqrt(float(d)) : 1.0f;
    float* to = is_query ? pass.query + ((size_t(unit / group) * s.rows + r) * group + unit % group) * d
                         : layer.keys + size_t(unit - s.heads) * s.slots * d + slot;
    const float *cosine = pass.cosine + size_t(r) * half, *sine = pass.sine + size_t(r) * half;
    for (int i = 0; i < half; i++) {
      to[i] = (x[i] * cosine[i] - x[half + i] * sine[i]) * factor;
      to[half + i] = (x[half + i] * cosine[i] + x[i] * sine[i]) * factor;
    }
  }

  void attention(const Layer& layer) {
    const Shape& s = pass.shape;
    const int splits = pass.splits - pass.first_split, d = s.head_dim;
    share(s.kv_heads * splits, [&](int item) {
      const int h = item / splits;
      const size_t at = size_t(item) * s.rows * s.group();
      pass.set.attention({&pass.tree, pass.first_split + item % splits, s.group(), d,
                          pass.query + size_t(h) * s.rows * s.group() * d, layer.keys + size_t(h) * s.slots * d,
                          layer.values + size_t(h) * s.slots * d, pass.sums + at * d, pass.most + at, pass.total + at,
                          scratch});
    });
  }

  // The splits of one row's heads added up in order of position.
  const float* mixed(int r) {
    const Shape& s = pass.shape;
    const int d = s.head_dim, group = s.group(), splits = pass.splits - pass.first_split;
    const int from = std::max(0, pass.tree.first_key(r) / kSplit - pass.first_split);
    const int to = (pass.tree.keys(r) + kSplit - 1) / kSplit - pass.first_split;
    for (int h = 0; h < s.heads; h++) {
      const size_t at = size_t(h / group * splits + from) * s.rows * group + r * group + h % group;
      join_splits(pass.set, to - from, size_t(s.rows) * group, pass.most + at, pass.total + at, pass.sums + at * d, d,
                  weights, row + h * d);
    }
    return row;
  }

  const float* activated(int r) {
    const Shape& s = pass.shape;
    const float* gate = pass.middle + size_t(r) * 2 * s.middle;
    pass.set.silu_mul(gate, gate + s.middle, s.middle, row);
    return row;
  }

  // hidden += fill · Wᵀ
  template <class Fill>
  void residual(const Weight& w, Fill fill) {
    linear(w, w.tiles(), fill, [&](int t, const Quantised& x) {
      tile(w, t, x, [&](int r, const float* columns) {
        float* to = pass.hidden + size_t(r) * w.columns + t * kTile;
        for (int c = 0; c < kTile; c++) to[c] += columns[c];
      });
    });
  }

  void gate_up(const Layer& layer) {
    const Weight& w = layer.gate_up;
    linear(w, w.tiles(), [&](int r) { return normed(r, layer.post_norm); }, [&](int t, const Quantised& x) {
      tile(w, t, x, [&](int r, const float* columns) {
        std::copy_n(columns, kTile, pass.middle + size_t(r) * w.columns + t * kTile);
      });
    });
  }

  void layer(const Layer& layer, float* tap, size_t tap_stride) {
    qkv(layer, tap, tap_stride);
    attention(layer);
    residual(layer.out, [&](int r) { return mixed(r); });
    gate_up(layer);
    residual(layer.down, [&](int r) { return activated(r); });
  }
};

}  // namespace dart
