// Norm, SiLU and attention over one vector type `V`. Included by linear4_tile.h.
#pragma once
#include "attention.h"
#include "linear4.h"

namespace dart {
namespace {

// exp by 2^n · p(r), |r| ≤ ln 2 / 2, a Taylor polynomial of degree 7 (error 3e-8); exactly 0 below -87.
template <class V>
typename V::Float exponential(typename V::Float x) {
  const auto n = V::round(V::mul(x, V::set(1.44269504f)));
  auto r = V::fma(n, V::set(-0.693359375f), x);
  r = V::fma(n, V::set(2.12194440e-4f), r);
  auto p = V::set(1.0f / 5040);
  for (float coefficient : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    p = V::fma(p, r, V::set(coefficient));
  return V::zero_below(V::times_power_of_2(p, n), x, V::set(-87.0f));
}

template <class V>
void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
  auto first = V::zero(), second = V::zero();
  for (int i = 0; i < n; i += 2 * V::kLanes) {
    const auto a = V::load(x + i), b = V::load(x + i + V::kLanes);
    first = V::fma(a, a, first);
    second = V::fma(b, b, second);
  }
  const auto factor = V::set(1.0f / std::sqrt(V::sum(V::add(first, second)) / float(n) + eps));
  for (int i = 0; i < n; i += V::kLanes) V::store(out + i, V::mul(V::mul(V::load(x + i), factor), V::load(weight + i)));
}

template <class V>
void silu_mul(const float* gate, const float* up, int n, float* out) {
  for (int i = 0; i < n; i += V::kLanes) {
    const auto g = V::load(gate + i);
    const auto e = exponential<V>(V::mul(V::max(g, V::set(-80.0f)), V::set(-1.0f)));  // e^80 is near enough to infinity
    V::store(out + i, V::mul(V::div(g, V::add(V::set(1.0f), e)), V::load(up + i)));
  }
}

// c [ROWS, COLUMNS vectors] (+)= a [ROWS, k] · b [k, COLUMNS vectors], every element one chain of k fused steps.
template <class V, int ROWS, int COLUMNS>
void multiply_tile(const float* a, size_t a_stride, const float* b, size_t b_stride, int k, float* c, size_t c_stride) {
  typename V::Float sum[ROWS][COLUMNS];
  for (int r = 0; r < ROWS; r++)
    for (int j = 0; j < COLUMNS; j++) sum[r][j] = V::zero();
  for (int i = 0; i < k; i++) {
    typename V::Float row[COLUMNS];
    for (int j = 0; j < COLUMNS; j++) row[j] = V::load(b + i * b_stride + j * V::kLanes);
    for (int r = 0; r < ROWS; r++) {
      const auto factor = V::set(a[r * a_stride + i]);
      for (int j = 0; j < COLUMNS; j++) sum[r][j] = V::fma(factor, row[j], sum[r][j]);
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int j = 0; j < COLUMNS; j++) V::store(c + r * c_stride + j * V::kLanes, sum[r][j]);
}

template <class V, int ROWS>
void multiply_rows(const float* a, size_t a_stride, const float* b, size_t b_stride, int k, int columns, float* c,
                   size_t c_stride) {
  int j = 0;
  for (; j + V::kColumns * V::kLanes <= columns; j += V::kColumns * V::kLanes)
    multiply_tile<V, ROWS, V::kColumns>(a, a_stride, b + j, b_stride, k, c + j, c_stride);
  for (; j < columns; j += V::kLanes) multiply_tile<V, ROWS, 1>(a, a_stride, b + j, b_stride, k, c + j, c_stride);
}

// c [rows, columns] = a [rows, k] · b [k, columns]; columns a multiple of 16.
template <class V>
void multiply(int rows, const float* a, size_t a_stride, const float* b, size_t b_stride, int k, int columns, float* c,
              size_t c_stride) {
  int r = 0;
  for (; r + V::kPairs <= rows; r += V::kPairs)
    multiply_rows<V, V::kPairs>(a + r * a_stride, a_stride, b, b_stride, k, columns, c + r * c_stride, c_stride);
  const auto rest = [&](auto self, auto count) {
    if constexpr (decltype(count)::value > 0) {
      if (rows - r == count.value)
        multiply_rows<V, count.value>(a + r * a_stride, a_stride, b, b_stride, k, columns, c + r * c_stride, c_stride);
      else
        self(self, std::integral_constant<int, count.value - 1>{});
    }
  };
  rest(rest, std::integral_constant<int, V::kPairs - 1>{});
}

// [n, head_dim] → [head_dim, stride]; columns up to the next multiple of 16 are zeros. Fetches the rows ahead: 4.0 ms a
// token of one thread at 1,000 slots against 4.5.
template <class V>
void transpose(const float* from, int n, int head_dim, float* to, size_t stride, float* spare) {
  for (int i = 0; i < n; i += 16) {
    const float* rows = from + size_t(i) * head_dim;
    if (n - i < 16) {
      std::memcpy(spare, rows, sizeof(float) * (n - i) * head_dim);
      std::memset(spare + (n - i) * head_dim, 0, sizeof(float) * (16 - (n - i)) * head_dim);
      rows = spare;
    }
    for (int d = 0; d < head_dim; d += 16) {
      V::transpose16(rows + d, head_dim, to + d * stride + i, stride);
      for (int r = 0; r < 16; r++) __builtin_prefetch(from + size_t(i + 48 + r) * head_dim + d);
    }
  }
}

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

template <class V>
void attention(const AttentionSplit& at) {
  const Tree& tree = *at.tree;
  const int d = at.head_dim, begin = at.split * kSplit;
  const int committed = tree.length < begin ? 0 : tree.length < begin + kSplit ? tree.length - begin : kSplit;
  const bool has_tree = tree.length < begin + kSplit;
  float* keys = at.scratch;                          // [d, 128]
  float* tree_keys = keys + size_t(kSplit) * d;      // [d, 64]
  float* spare = tree_keys + size_t(kTreeRows) * d;  // [16, d]
  float* scores = spare + 16 * d;                    // [pairs, 128]
  transpose<V>(at.keys + size_t(begin) * d, committed, d, keys, kSplit, spare);
  if (has_tree) transpose<V>(at.keys + size_t(tree.length) * d, tree.rows, d, tree_keys, kTreeRows, spare);

  const int rows_a_chunk = at.group >= kPairChunk ? 1 : kPairChunk / at.group;
  for (int first = 0; first < tree.rows; first += rows_a_chunk) {
    const int rows = tree.rows - first < rows_a_chunk ? tree.rows - first : rows_a_chunk, pairs = rows * at.group;
    const float* query = at.query + size_t(first) * at.group * d;
    float* sums = at.sums + size_t(first) * at.group * d;
    float* tree_scores = scores + size_t(pairs) * kSplit;  // [pairs, 64]
    multiply<V>(pairs, query, d, keys, kSplit, d, round_up(committed, 16), scores, kSplit);
    if (has_tree) multiply<V>(pairs, query, d, tree_keys, kTreeRows, d, round_up(tree.rows, 16), tree_scores, kTreeRows);

    for (int pair = 0; pair < pairs; pair++) {
      const int row = first + pair / at.group, count = tree.keys(row) - begin < kSplit ? tree.keys(row) - begin : kSplit;
      float* score = scores + size_t(pair) * kSplit;
      for (int i = committed; i < count; i++)
        score[i] = tree_scores[pair * kTreeRows + tree.path[row][begin + i - tree.length]];
      for (int i = 0; i < tree.first_key(row) - begin && i < count; i++) score[i] = -INFINITY;
      const int padded = count > 0 ? round_up(count, V::kLanes) : 0;
      for (int i = count > 0 ? count : 0; i < padded; i++) score[i] = -INFINITY;
      auto most = V::set(-INFINITY), total = V::zero();
      for (int i = 0; i < padded; i += V::kLanes) most = V::max(most, V::load(score + i));
      const float peak = V::most(most);
      const bool any = peak > -INFINITY;
      for (int i = 0; i < padded; i += V::kLanes) {
        const auto weight =
            any ? exponential<V>(V::add(V::load(score + i), V::set(-peak))) : V::zero();
        V::store(score + i, weight);
        total = V::add(total, weight);
      }
      at.most[first * at.group + pair] = peak;
      at.total[first * at.group + pair] = V::sum(total);
    }

    multiply<V>(pairs, scores, kSplit, at.values + size_t(begin) * d, d, committed, d, sums, d);
    for (int pair = 0; pair < pairs; pair++) {
      const int row = first + pair / at.group, count = tree.keys(row) - begin < kSplit ? tree.keys(row) - begin : kSplit;
      for (int i = committed; i < count; i++) {
        const auto weight = V::set(scores[size_t(pair) * kSplit + i]);
        const float* value = at.values + size_t(tree.length + tree.path[row][begin + i - tree.length]) * d;
        float* sum = sums + size_t(pair) * d;
        for (int j = 0; j < d; j += V::kLanes)
          V::store(sum + j, V::fma(weight, V::load(value + j), V::load(sum + j)));
      }
    }
  }
}

// out [d] = Σ weights[i] · sums[i], i in order.
template <class V>
void combine(const float* weights, int n, const float* sums, size_t stride, int d, float* out) {
  multiply_rows<V, 1>(weights, n, sums, stride, n, d, out, d);
}

}  // namespace
}  // namespace dart
