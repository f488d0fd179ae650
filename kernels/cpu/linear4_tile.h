// The arithmetic of linear4.h over one vector type `V`. Included once per instruction set, inside its target pragma.
#pragma once
#include "attention_tile.h"
#include "linear4.h"

namespace dart {
namespace {

// Bytes ahead in the stream of weights that the first pass over a tile fetches. The processor's own prefetching does
// not keep up once a group costs many instructions: 8 rows took 3.8 ms without and 2.6 with (one thread, 8 to 16 KB).
constexpr size_t kAhead = 8192;

// ROWS × (BLOCKS vectors of columns) at a time.
template <class V, int ROWS, int BLOCKS, int GROUP, bool MINIMUM, bool WIDE>
void tile_rows(const Weight& w, const uint8_t* codes, const uint8_t* block, float* out, bool cold) {
  constexpr size_t kBytes = size_t(GROUP) * (kTile / 2) + (MINIMUM ? 4 : 2) * kTile;
  const auto table = V::load_table(w.table, WIDE);
  for (int column = 0; column < kTile; column += BLOCKS * V::kLanes) {
    typename V::Float total[ROWS][BLOCKS];
    for (int r = 0; r < ROWS; r++)
      for (int b = 0; b < BLOCKS; b++) total[r][b] = V::zero();
    const uint8_t* from = codes;
    const uint8_t* rows = block;
    for (int g = 0; g < w.groups; g++, from += kBytes, rows += ROWS * (GROUP + 12)) {
      if (cold && column == 0)
        for (size_t i = 0; i < kBytes; i += 64) __builtin_prefetch(from + kAhead + i);
      const int32_t* start = reinterpret_cast<const int32_t*>(rows + ROWS * GROUP);
      typename V::Int sum[ROWS][BLOCKS];
      for (int r = 0; r < ROWS; r++)
        for (int b = 0; b < BLOCKS; b++) sum[r][b] = V::set(start[r]);
#pragma GCC unroll 8
      for (int quad = 0; quad < GROUP / 8; quad++) {
        typename V::Int low[BLOCKS], high[BLOCKS];
        for (int b = 0; b < BLOCKS; b++)
          V::unpack(from + quad * kTile * 4 + (column + b * V::kLanes) * 4, table, low[b], high[b]);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
          const auto first = V::quad(rows + r * GROUP + quad * 8), second = V::quad(rows + r * GROUP + quad * 8 + 4);
          for (int b = 0; b < BLOCKS; b++) sum[r][b] = V::template dot<WIDE>(sum[r][b], low[b], first);
          for (int b = 0; b < BLOCKS; b++) sum[r][b] = V::template dot<WIDE>(sum[r][b], high[b], second);
        }
      }
      const uint8_t* scales = from + GROUP * (kTile / 2);
      const float* row_scale = reinterpret_cast<const float*>(start + ROWS);
      const float* q_sum = row_scale + ROWS;
      for (int b = 0; b < BLOCKS; b++) {
        const auto scale = V::half(scales + (column + b * V::kLanes) * 2);
        for (int r = 0; r < ROWS; r++)
          total[r][b] = V::fma(V::to_float(sum[r][b]), V::mul(scale, V::set(row_scale[r])), total[r][b]);
        if (MINIMUM) {
          const auto minimum = V::half(scales + (kTile + column + b * V::kLanes) * 2);
          for (int r = 0; r < ROWS; r++) total[r][b] = V::fma(minimum, V::set(q_sum[r]), total[r][b]);
        }
      }
    }
    for (int r = 0; r < ROWS; r++)
      for (int b = 0; b < BLOCKS; b++) V::store(out + r * kTile + column + b * V::kLanes, total[r][b]);
  }
}

template <class V, int ROWS, bool WIDE>
void tile_format(const Weight& w, const uint8_t* codes, const uint8_t* block, float* out, bool cold) {
  constexpr int kBlocks = V::kBlocks;
  if (w.group == 32 && w.minimum) tile_rows<V, ROWS, kBlocks, 32, true, WIDE>(w, codes, block, out, cold);
  else if (w.group == 32) tile_rows<V, ROWS, kBlocks, 32, false, WIDE>(w, codes, block, out, cold);
  else if (w.minimum) tile_rows<V, ROWS, kBlocks, 64, true, WIDE>(w, codes, block, out, cold);
  else tile_rows<V, ROWS, kBlocks, 64, false, WIDE>(w, codes, block, out, cold);
}

template <class V, bool WIDE, int ROWS = V::kMaxRows>
void tile_any(const Weight& w, const uint8_t* codes, const uint8_t* block, int rows, float* out, bool cold) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS) tile_format<V, ROWS, WIDE>(w, codes, block, out, cold);
    else tile_any<V, WIDE, ROWS - 1>(w, codes, block, rows, out, cold);
  }
}

// Some instruction sets cannot take an unsigned operand above 127 ("wide"): they subtract 128 from the table.
inline bool above_127(const uint8_t* table) {
  bool above = false;
  for (int i = 0; i < 16; i++) above |= table[i] > 127;
  return above;
}

template <class V>
void tile(const Weight& w, const uint8_t* codes, const uint8_t* block, int rows, float* out, bool cold) {
  if constexpr (V::kWideIsSigned) {
    if (above_127(w.table)) return tile_any<V, true>(w, codes, block, rows, out, cold);
  }
  tile_any<V, false>(w, codes, block, rows, out, cold);
}

template <class V>
float quantise(const float* x, int r, int rows, const Weight& w, uint8_t* block) {
  const int group = w.group, offset = V::kWideIsSigned && above_127(w.table) ? w.offset - 128 : w.offset;
  float poison;  // 0, or NaN where x is not finite
  V::largest(x, w.k(), poison);
  const bool finite = poison == 0;
  for (int g = 0; g < w.groups; g++) {
    uint8_t* to = block + size_t(g) * rows * (group + 12);
    int8_t* q = reinterpret_cast<int8_t*>(to + r * group);
    float none;
    const float largest = finite ? V::largest(x + g * group, group, none) : 0.0f;
    int32_t sum = 0;
    if (largest < 1e-35f)  // 127 / largest would overflow
      std::memset(q, 0, group);
    else
      sum = V::round_group(x + g * group, 127.0f / largest, q, group);
    const float scale = largest / 127.0f;
    reinterpret_cast<int32_t*>(to + rows * group)[r] = -offset * sum;
    reinterpret_cast<float*>(to + rows * (group + 4))[r] = scale;
    reinterpret_cast<float*>(to + rows * (group + 8))[r] = scale * float(sum);
  }
  return 1.0f + poison;
}

template <class V>
constexpr InstructionSet instructions(const char* name) {
  return {name, V::kMaxRows, quantise<V>, tile<V>, rms_norm<V>, silu_mul<V>, attention<V>, combine<V>};
}

}  // namespace
}  // namespace dart
