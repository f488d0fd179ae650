// y = x · Wᵀ for 4-bit W: the layout in memory, and the functions each instruction set provides.
//
// Weights lie in tiles of 32 columns (rows of W). A tile is a stream of groups along K, each
//   codes    group/8 × 32 columns × 4 bytes; byte i of quad j holds k = 8j + i (low nibble) and k = 8j + 4 + i (high)
//   scales   32 × fp16
//   minimums 32 × fp16, if the format has them
// and w[n, k] = ((table[code] - offset) · scale + minimum) · unit.
//
// Activations are symmetric int8 per group of a row (a scale for a whole row costs 2.6 % of perplexity: a few of a
// model's activations are far larger than the rest), in blocks of a few rows. A block is a stream of groups, each
//   int8  rows × group
//   int32 rows: -offset · Σ q, what the dot product starts from
//   fp32  rows: the scale, x ≈ q · scale
//   fp32  rows: scale · Σ q, what the minimum is multiplied with
//
// Every instruction set computes the same integers and then the same fused multiply-adds in the same order, group
// after group, so results are bit-equal between them and whatever the number of rows.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

namespace dart {

constexpr int kTile = 32;
constexpr int kMaxRows = 8;  // 8 rows × 2 vectors of columns fill half of the 32 vector registers with sums

struct Weight {
  const uint8_t* data;
  const uint8_t* table;  // [16]
  int columns;           // N, not padded
  int groups;            // K / group
  int group;             // 32 or 64
  int offset;
  float unit;
  bool minimum;

  int k() const { return groups * group; }
  int tiles() const { return (columns + kTile - 1) / kTile; }
  size_t group_bytes() const { return size_t(group) * (kTile / 2) + (minimum ? 4 : 2) * kTile; }
  const uint8_t* tile(int t) const { return data + size_t(t) * groups * group_bytes(); }
};

inline size_t row_bytes(int k, int group) { return size_t(k / group) * (group + 12); }

// One split of the context for one key head and all rows, see attention.h.
struct AttentionSplit;

struct InstructionSet {
  const char* name;
  int max_rows;  // rows in a block
  // x fp32 [k] → row `r` of a block of `rows`. Returns 1, or NaN where x has a NaN or infinity.
  float (*quantise)(const float* x, int r, int rows, const Weight& w, uint8_t* block);
  // One tile times one block → out fp32 [rows, 32], before unit. `cold`: the tile comes from memory.
  void (*tile)(const Weight& w, const uint8_t* codes, const uint8_t* block, int rows, float* out, bool cold);
  // x / sqrt(mean(x²) + eps) · weight, fp32 [n], n a multiple of 32.
  void (*rms_norm)(const float* x, const float* weight, int n, float eps, float* out);
  // silu(gate) · up, fp32 [n], n a multiple of 32.
  void (*silu_mul)(const float* gate, const float* up, int n, float* out);
  void (*attention)(const AttentionSplit& split);
  // out [d] = Σ weights[i] · sums[i], n rows `stride` apart.
  void (*combine)(const float* weights, int n, const float* sums, size_t stride, int d, float* out);
};

extern const InstructionSet kAvx512Vnni, kAvxVnni, kAvx2, kScalar;
const InstructionSet& instruction_set();
bool select_instruction_set(const char* name);  // false where this CPU lacks it

}  // namespace dart
