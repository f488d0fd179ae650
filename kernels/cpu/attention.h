// Attention of a draft tree, in splits of 128 positions.
//
// A row sees the committed slots [0, length) and then its path: the tree slots of its ancestors and its own, by depth.
// A key's position is its place in that order. Splits, lanes and the order of sums follow from positions alone, so a
// row's result is bit-equal to that of plain decoding, where the path was committed before.
#pragma once
#include <cstddef>
#include <cstdint>

namespace dart {

constexpr int kSplit = 128;     // positions: short enough to share out a short context, long enough to add up few
constexpr int kTreeRows = 64;   // most rows of a tree
constexpr int kPairChunk = 24;  // pairs of (row, query head) whose scores are kept at once: 12 KB

struct Tree {
  int rows, length, window;  // window in positions, 0 for none
  int path_length[kTreeRows];
  uint8_t path[kTreeRows][kTreeRows];  // tree rows from the root to the row itself

  int keys(int row) const { return length + path_length[row]; }
  int first_key(int row) const { return window > 0 && keys(row) > window ? keys(row) - window : 0; }
};

struct AttentionSplit {
  const Tree* tree;
  int split;            // positions [128 · split, 128 · split + 128)
  int group, head_dim;  // query heads of this key head; head_dim a multiple of 32
  const float* query;   // [rows, group, head_dim], scaled by 1/sqrt(head_dim)
  const float* keys;    // [slots, head_dim]
  const float* values;
  float* sums;   // [rows, group, head_dim], Σ exp(score - most) · value
  float* most;   // [rows, group], -infinity where the row has no key in this split
  float* total;  // [rows, group], Σ exp(score - most)
  float* scratch;
};

inline size_t attention_scratch(int head_dim) {
  return size_t(kSplit + kTreeRows + 16) * head_dim + size_t(kPairChunk + 64) * (kSplit + kTreeRows);
}

}  // namespace dart
