// Attention of a batch of conversations, one new row each, every one over its own cache and length.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <cmath>
#include <vector>

#include "attention.h"
#include "attention_join.h"
#include "linear4.h"

namespace dart {
namespace {

void check(const at::Tensor& tensor, at::ScalarType type, at::IntArrayRef sizes, const char* name) {
  TORCH_CHECK(tensor.is_cpu() && tensor.scalar_type() == type && tensor.is_contiguous() && tensor.sizes() == sizes,
              "batch_attention: ", name, " must be contiguous ", type, " ", sizes, " on the CPU, got ",
              tensor.scalar_type(), " ", tensor.sizes(), " on ", tensor.device());
}

// One key head of one conversation: query [group, d], scaled, to out [group, d].
void attend(const InstructionSet& set, const Tree& tree, int group, int d, const float* query, const float* keys,
            const float* values, float* out) {
  thread_local std::vector<float> scratch, sums, most, total, weights;
  const int first = tree.first_key(0) / kSplit, splits = (tree.keys(0) + kSplit - 1) / kSplit - first;
  scratch.resize(attention_scratch(d));
  sums.resize(size_t(splits) * group * d), most.resize(splits * group), total.resize(splits * group);
  weights.resize(splits);
  for (int s = 0; s < splits; s++)
    set.attention({&tree, first + s, group, d, query, keys, values, sums.data() + size_t(s) * group * d,
                   most.data() + s * group, total.data() + s * group, scratch.data()});
  for (int g = 0; g < group; g++)
    join_splits(set, splits, group, most.data() + g, total.data() + g, sums.data() + size_t(g) * d, d, weights.data(),
                out + size_t(g) * d);
}

at::Tensor batch_attention(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                           const at::Tensor& length, int64_t window) {
  TORCH_CHECK(query.dim() == 3 && keys.dim() == 4, "batch_attention: query must be [B, heads, D], keys ",
              "[B, kv_heads, S, D]");
  const int64_t rows = query.size(0), heads = query.size(1), d = query.size(2), kv_heads = keys.size(1),
                slots = keys.size(2);
  TORCH_CHECK(d % kTile == 0 && kv_heads > 0 && heads % kv_heads == 0 && heads / kv_heads <= 64,
              "batch_attention: D must be a multiple of 32, heads one of kv_heads, got ", query.sizes());
  check(query, at::kFloat, {rows, heads, d}, "query");
  check(keys, at::kFloat, {rows, kv_heads, slots, d}, "keys");
  check(values, at::kFloat, keys.sizes(), "values");
  check(length, at::kLong, {rows}, "length");
  const int64_t* lengths = length.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < rows; r++)
    TORCH_CHECK(lengths[r] >= 0 && lengths[r] < slots, "batch_attention: row ", r, " at ", lengths[r],
                " does not fit a cache of ", slots, " slots");
  at::Tensor out = at::empty_like(query), scaled = query.mul(1 / std::sqrt(double(d)));
  const InstructionSet& set = instruction_set();
  const int group = int(heads / kv_heads);
  at::parallel_for(0, rows * kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      Tree tree{1, int(lengths[i / kv_heads]), int(window), {1}, {{0}}};
      const int64_t row = i * group * d, cache = i * slots * d;
      attend(set, tree, group, int(d), scaled.const_data_ptr<float>() + row, keys.const_data_ptr<float>() + cache,
             values.const_data_ptr<float>() + cache, out.mutable_data_ptr<float>() + row);
    }
  });
  return out;
}

at::Tensor batch_attention_meta(const at::Tensor& query, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                int64_t) {
  return at::empty_like(query);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dart, m) {
  m.def("batch_attention(Tensor query, Tensor keys, Tensor values, Tensor length, int window) -> Tensor");
}
TORCH_LIBRARY_IMPL(dart, CPU, m) { m.impl("batch_attention", &batch_attention); }
TORCH_LIBRARY_IMPL(dart, Meta, m) { m.impl("batch_attention", &batch_attention_meta); }

}  // namespace dart
