// The operators of dart::, their argument checks and their threads.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "linear4.h"

namespace dart {
namespace {

// Multiply-adds below which another thread is not woken: reading their weights takes about 4 µs, waking it 2 to 5.
constexpr int64_t kSerialWork = 200'000;

Weight checked_weight(const at::Tensor& data, const at::Tensor& table, int64_t columns, int64_t group, int64_t offset,
                      double unit) {
  TORCH_CHECK(data.device().is_cpu() && table.device().is_cpu(), "linear4: the packed weight must be on the CPU");
  TORCH_CHECK(data.scalar_type() == at::kByte && data.dim() == 3 && data.is_contiguous(),
              "linear4: data must be contiguous uint8 [tiles, groups, bytes], got ", data.sizes());
  TORCH_CHECK(table.scalar_type() == at::kByte && table.numel() == 16 && table.is_contiguous(),
              "linear4: table must be contiguous uint8 [16]");
  TORCH_CHECK(group == 32 || group == 64, "linear4: the group must be 32 or 64, not ", group);
  const int64_t codes = group * (kTile / 2), bytes = data.size(2);
  TORCH_CHECK(bytes == codes + 2 * kTile || bytes == codes + 4 * kTile, "linear4: ", bytes,
              " bytes a group do not fit group ", group);
  TORCH_CHECK(columns > 0 && (columns + kTile - 1) / kTile == data.size(0), "linear4: N = ", columns,
              " does not fit ", data.size(0), " tiles of ", kTile);
  return {data.const_data_ptr<uint8_t>(), table.const_data_ptr<uint8_t>(), int(columns), int(data.size(1)),
          int(group), int(offset), float(unit), bytes == codes + 4 * kTile};
}

at::Tensor linear4(const at::Tensor& x, const at::Tensor& data, const at::Tensor& table, int64_t columns,
                   int64_t group, int64_t offset, double unit, const std::optional<at::Tensor>& bias) {
  const Weight w = checked_weight(data, table, columns, group, offset, unit);
  TORCH_CHECK(x.device().is_cpu() && x.scalar_type() == at::kFloat, "linear4: x must be fp32 on the CPU, got ",
              x.scalar_type(), " on ", x.device());
  TORCH_CHECK(x.dim() == 2 && x.size(1) == w.k(), "linear4: x must be [M, ", w.k(), "], got ", x.sizes());
  TORCH_CHECK(x.is_contiguous(), "linear4: x must be contiguous");
  if (bias)
    TORCH_CHECK(bias->device().is_cpu() && bias->scalar_type() == at::kFloat && bias->dim() == 1 &&
                    bias->numel() == columns && bias->is_contiguous(),
                "linear4: bias must be contiguous fp32 [", columns, "] on the CPU");
  const int rows = int(x.size(0));
  at::Tensor out = at::empty({x.size(0), columns}, x.options());
  if (rows == 0) return out;

  const InstructionSet& set = instruction_set();
  const int blocks = (rows + set.max_rows - 1) / set.max_rows;
  const auto block_start = [&](int b) { return b * (rows / blocks) + std::min(b, rows % blocks); };
  const size_t bytes = row_bytes(w.k(), w.group);
  thread_local std::vector<uint8_t> scratch;
  thread_local std::vector<float> scratch_scale;
  if (scratch.size() < bytes * rows + 64) scratch.resize(bytes * rows + 64);
  if (scratch_scale.size() < size_t(rows)) scratch_scale.resize(rows);
  uint8_t* q = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
  float* scale = scratch_scale.data();
  const float* in = x.const_data_ptr<float>();
  const int64_t blocks_alone = std::max<int64_t>(1, kSerialWork / 4 / (int64_t(w.k()) * set.max_rows));
  at::parallel_for(0, blocks, blocks_alone, [&](int64_t begin, int64_t end) {
    for (int b = int(begin); b < end; b++) {
      const int first = block_start(b), count = block_start(b + 1) - first;
      for (int r = 0; r < count; r++)
        scale[first + r] = set.quantise(in + size_t(first + r) * w.k(), r, count, w, q + first * bytes);
    }
  });

  const float* added = bias ? bias->const_data_ptr<float>() : nullptr;
  float* to = out.mutable_data_ptr<float>();
  const int64_t tiles_alone = std::max<int64_t>(1, kSerialWork / (int64_t(w.k()) * kTile * rows));
  at::parallel_for(0, w.tiles(), tiles_alone, [&](int64_t begin, int64_t end) {
    alignas(64) float sums[kMaxRows * kTile];
    for (int t = int(begin); t < end; t++) {
      const int width = std::min(kTile, w.columns - t * kTile);
      for (int b = 0; b < blocks; b++) {
        const int first = block_start(b), count = block_start(b + 1) - first;
        set.tile(w, w.tile(t), q + first * bytes, count, sums, b == 0);
        for (int r = 0; r < count; r++) {
          const float factor = scale[first + r] * w.unit;
          float* row = to + size_t(first + r) * w.columns + t * kTile;
          for (int c = 0; c < width; c++) row[c] = sums[r * kTile + c] * factor;
          if (added)
            for (int c = 0; c < width; c++) row[c] += added[t * kTile + c];
        }
      }
    }
  });
  return out;
}

at::Tensor linear4_meta(const at::Tensor& x, const at::Tensor& data, const at::Tensor& /*table*/, int64_t columns,
                        int64_t group, int64_t /*offset*/, double /*unit*/, const std::optional<at::Tensor>& /*bias*/) {
  TORCH_CHECK(x.dim() == 2 && data.dim() == 3 && x.sym_size(1) == data.sym_size(1) * group,
              "linear4: x must be [M, K], got ", x.sym_sizes());
  return at::empty_symint({x.sym_size(0), columns}, x.options());
}

std::string cpu_path() { return instruction_set().name; }

void select_cpu_path(std::string name) {
  TORCH_CHECK(select_instruction_set(name.c_str()), "this CPU has no ", name);
}

}  // namespace

TORCH_LIBRARY(dart, m) {
  m.def(
      "linear4(Tensor x, Tensor data, Tensor table, int columns, int group, int offset, float unit, "
      "Tensor? bias=None) -> Tensor");
  m.def("cpu_path() -> str", &cpu_path);
  m.def("select_cpu_path(str name) -> ()", &select_cpu_path);
}

TORCH_LIBRARY_IMPL(dart, CPU, m) { m.impl("linear4", &linear4); }
TORCH_LIBRARY_IMPL(dart, Meta, m) { m.impl("linear4", &linear4_meta); }

}  // namespace dart
