// All decoder layers of a draft tree in one operator and one parallel region: checks, memory, threads.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <omp.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "layer_stages.h"

namespace dart {
namespace {

// Multiply-adds of all layers below which other threads are not woken.
constexpr int64_t kSerialWork = 1'000'000;

// Memory that grows and stays: nothing is allocated once the shapes have been seen.
template <class T>
struct Buffer {
  std::vector<T> memory;
  T* need(size_t count) {
    if (memory.size() < count + kLine) memory.resize(count + kLine);
    return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory.data()) + kLine - 1) / kLine * kLine);
  }
};

void check_floats(const at::Tensor& tensor, at::IntArrayRef sizes, const char* name) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous() &&
                  tensor.sizes() == sizes,
              "decoder_layers: ", name, " must be contiguous fp32 ", sizes, " on the CPU, got ", tensor.scalar_type(),
              " ", tensor.sizes(), " on ", tensor.device());
}

void check_integers(const at::Tensor& tensor, int64_t count, const char* name) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.scalar_type() == at::kLong && tensor.is_contiguous() &&
                  tensor.dim() == 1 && tensor.numel() == count,
              "decoder_layers: ", name, " must be contiguous int64 [", count, "] on the CPU");
}

Tree checked_tree(const at::Tensor& depth, const at::Tensor& ancestor, int64_t length, int64_t window) {
  Tree tree{int(depth.numel()), int(length), int(window), {}, {}};
  const int64_t* depths = depth.const_data_ptr<int64_t>();
  const int64_t* masks = ancestor.const_data_ptr<int64_t>();
  for (int r = 0; r < tree.rows; r++) {
    const uint64_t mask = uint64_t(masks[r]), later = r == 63 ? 0 : ~uint64_t(0) << (r + 1);
    TORCH_CHECK((mask >> r & 1) && !(mask & later), "decoder_layers: row ", r,
                " must see itself and no later row: its ancestors are ", masks[r]);
    for (int j = 0; j <= r; j++)
      if (mask >> j & 1) tree.path[r][tree.path_length[r]++] = uint8_t(j);
    TORCH_CHECK(tree.path_length[r] == depths[r] + 1, "decoder_layers: row ", r, " has ", tree.path_length[r] - 1,
                " ancestors and depth ", depths[r]);
  }
  return tree;
}

std::tuple<at::Tensor, at::Tensor> decoder_layers(
    const at::Tensor& embedded, const at::Tensor& depth, const at::Tensor& ancestor, const at::Tensor& length,
    const at::Tensor& keys, const at::Tensor& values, const at::Tensor& inverse_frequency, double rope_scale,
    const at::Tensor& norms, const std::optional<at::Tensor>& head_norms, const std::optional<at::Tensor>& qkv_bias,
    at::TensorList data, const at::Tensor& tables, const at::Tensor& formats, const at::Tensor& units, double eps,
    int64_t window, at::IntArrayRef taps) {
  TORCH_CHECK(keys.dim() == 4 && norms.dim() == 3 && embedded.dim() == 2, "decoder_layers: keys must be ",
              "[layers, kv_heads, slots, head_dim], norms [layers, 2, H] and embedded [M, H]");
  const int64_t rows = embedded.size(0), hidden = embedded.size(1), layers = keys.size(0), kv_heads = keys.size(1),
                slots = keys.size(2), head_dim = keys.size(3);
  TORCH_CHECK(rows >= 1 && rows <= kTreeRows, "decoder_layers: 1 to 64 rows, not ", rows);
  TORCH_CHECK(head_dim % kTile == 0 && hidden % kTile == 0, "decoder_layers: head_dim and H must be multiples of 32");
  TORCH_CHECK(int64_t(data.size()) == 4 * layers, "decoder_layers: ", data.size(), " weights for ", layers, " layers");
  check_floats(embedded, {rows, hidden}, "embedded");
  check_floats(keys, {layers, kv_heads, slots, head_dim}, "keys");
  check_floats(values, keys.sizes(), "values");
  check_floats(inverse_frequency, {head_dim / 2}, "inverse_frequency");
  check_floats(norms, {layers, 2, hidden}, "norms");
  if (head_norms) check_floats(*head_norms, {layers, 2, head_dim}, "head_norms");
  check_integers(depth, rows, "depth");
  check_integers(ancestor, rows, "ancestor");
  check_integers(length, 1, "length");
  TORCH_CHECK(tables.scalar_type() == at::kByte && tables.is_contiguous() && tables.numel() == 64 * layers &&
                  formats.scalar_type() == at::kLong && formats.is_contiguous() && formats.numel() == 12 * layers &&
                  units.scalar_type() == at::kDouble && units.is_contiguous() && units.numel() == 4 * layers,
              "decoder_layers: tables uint8 [4 L, 16], formats int64 [4 L, 3], units fp64 [4 L]");
  const int64_t committed = length.const_data_ptr<int64_t>()[0];
  TORCH_CHECK(committed >= 0 && committed + rows <= slots, "decoder_layers: ", committed, " + ", rows,
              " rows do not fit a cache of ", slots, " slots");
  for (const int64_t& tap : taps)
    TORCH_CHECK(tap >= 0 && tap < layers && std::find(taps.begin(), &tap, tap) == &tap, "decoder_layers: layer ", tap,
                " cannot be tapped, or not twice");
  const Tree tree = checked_tree(depth, ancestor, committed, window);

  const int64_t* format = formats.const_data_ptr<int64_t>();
  const double* unit = units.const_data_ptr<double>();
  std::vector<Layer> stack(layers);
  const auto weight = [&](int64_t i) {
    Weight w{data[i].const_data_ptr<uint8_t>(), tables.const_data_ptr<uint8_t>() + 16 * i, int(format[3 * i]),
             int(data[i].size(1)), int(format[3 * i + 1]), int(format[3 * i + 2]), float(unit[i]), false};
    w.minimum = size_t(data[i].size(2)) != w.group_bytes();
    TORCH_CHECK(data[i].is_cpu() && data[i].is_contiguous() && size_t(data[i].size(2)) == w.group_bytes() &&
                    data[i].size(0) == w.tiles() && (w.group == 32 || w.group == 64),
                "decoder_layers: weight ", i, " is not packed for linear4");
    return w;
  };
  const float* norm = norms.const_data_ptr<float>();
  const float* head_norm = head_norms ? head_norms->const_data_ptr<float>() : nullptr;
  int64_t heads = 0, middle = 0;
  for (int64_t l = 0; l < layers; l++) {
    Layer& layer = stack[l];
    layer.qkv = weight(4 * l), layer.out = weight(4 * l + 1), layer.gate_up = weight(4 * l + 2);
    layer.down = weight(4 * l + 3);
    heads = layer.qkv.columns / head_dim - 2 * kv_heads;
    middle = layer.gate_up.columns / 2;
    TORCH_CHECK(heads > 0 && heads % kv_heads == 0 && heads / kv_heads <= 64 && middle % kTile == 0 &&
                    layer.qkv.k() == hidden && layer.qkv.columns == (heads + 2 * kv_heads) * head_dim &&
                    layer.out.k() == heads * head_dim && layer.out.columns == hidden && layer.gate_up.k() == hidden &&
                    layer.down.k() == middle && layer.down.columns == hidden,
                "decoder_layers: the weights of layer ", l, " do not fit together");
    layer.input_norm = norm + 2 * l * hidden, layer.post_norm = layer.input_norm + hidden;
    layer.q_norm = head_norm ? head_norm + 2 * l * head_dim : nullptr;
    layer.k_norm = head_norm ? layer.q_norm + head_dim : nullptr;
    layer.qkv_bias = nullptr;
    if (qkv_bias) {
      check_floats(*qkv_bias, {layers, (heads + 2 * kv_heads) * head_dim}, "qkv_bias");
      layer.qkv_bias = qkv_bias->const_data_ptr<float>() + l * layer.qkv.columns;
    }
    layer.keys = keys.mutable_data_ptr<float>() + l * kv_heads * slots * head_dim;
    layer.values = values.mutable_data_ptr<float>() + l * kv_heads * slots * head_dim;
  }

  const Shape shape{int(rows), int(hidden), int(heads), int(kv_heads), int(head_dim), int(middle), int(slots), float(eps)};
  at::Tensor out = at::empty({rows, hidden}, embedded.options());
  at::Tensor tapped = at::empty({rows, int64_t(taps.size()) * hidden}, embedded.options());
  std::copy_n(embedded.const_data_ptr<float>(), rows * hidden, out.mutable_data_ptr<float>());
  float* tapped_to = tapped.mutable_data_ptr<float>();

  int first_key = INT32_MAX, last_key = 0;
  for (int r = 0; r < rows; r++) {
    first_key = std::min(first_key, tree.first_key(r));
    last_key = std::max(last_key, tree.keys(r));
  }
  const int first_split = first_key / kSplit, splits = (last_key + kSplit - 1) / kSplit;
  const size_t partials = size_t(rows) * heads * (splits - first_split);
  const size_t widest = std::max({hidden, middle, heads * head_dim});
  const size_t q_bytes = size_t(rows) * row_bytes(int(widest + 64), 32);
  thread_local Buffer<float> angles, queries, middles, sums, totals, scales;
  thread_local Buffer<uint8_t> quantised;
  float* cosine = angles.need(rows * head_dim);
  float* sine = cosine + rows * head_dim / 2;
  const float* frequency = inverse_frequency.const_data_ptr<float>();
  for (int r = 0; r < rows; r++)
    for (int i = 0; i < head_dim / 2; i++) {
      const float angle = float(tree.length + tree.path_length[r] - 1) * frequency[i];
      cosine[r * (head_dim / 2) + i] = std::cos(angle) * float(rope_scale);
      sine[r * (head_dim / 2) + i] = std::sin(angle) * float(rope_scale);
    }

  const int64_t work_size = rows * layers * hidden * (stack[0].qkv.columns + heads * head_dim + 3 * middle);
  const int threads = at::in_parallel_region() || work_size < kSerialWork ? 1 : at::get_num_threads();
  const int stages = int(layers) * (rows <= kPrivateRows ? 5 : 9);
  thread_local Buffer<int> counts;
  const size_t count = size_t(stages) * (threads + 1) * (kLine / sizeof(int));
  int* counters = counts.need(count);
  std::fill_n(counters, count, 0);
  float* most = totals.need(2 * partials);
  Pass pass{instruction_set(), shape, tree, cosine, sine, out.mutable_data_ptr<float>(),
            queries.need(rows * heads * head_dim), middles.need(2 * rows * middle), sums.need(partials * head_dim), most,
            most + partials, first_split, splits, {quantised.need(q_bytes), scales.need(rows)}, counters};
  const auto work = [&](int id, int team) {
    thread_local Buffer<float> own_row, own_head, own_weights, own_scratch, own_scale;
    thread_local Buffer<uint8_t> own_quantised;
    Worker worker{pass, id, team, {own_quantised.need(q_bytes), own_scale.need(rows)}, own_row.need(widest),
                  own_head.need(rows * head_dim), own_weights.need(splits), own_scratch.need(attention_scratch(int(head_dim)))};
    for (int64_t l = 0; l < layers; l++) {
      const auto tap = std::find(taps.begin(), taps.end(), l);
      worker.layer(stack[l], tap == taps.end() ? nullptr : tapped_to + (tap - taps.begin()) * hidden, taps.size() * hidden);
    }
  };
  if (threads == 1) {
    work(0, 1);
  } else {
#pragma omp parallel num_threads(threads)
    work(omp_get_thread_num(), omp_get_num_threads());
  }
  return {out, tapped};
}

std::tuple<at::Tensor, at::Tensor> decoder_layers_meta(
    const at::Tensor& embedded, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
    const at::Tensor&, const at::Tensor&, double, const at::Tensor&, const std::optional<at::Tensor>&,
    const std::optional<at::Tensor>&, at::TensorList, const at::Tensor&, const at::Tensor&, const at::Tensor&, double,
    int64_t, at::IntArrayRef taps) {
  const auto rows = embedded.sym_size(0), hidden = embedded.sym_size(1);
  return {at::empty_symint({rows, hidden}, embedded.options()),
          at::empty_symint({rows, hidden * int64_t(taps.size())}, embedded.options())};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dart, m) {
  m.def(
      "decoder_layers(Tensor embedded, Tensor depth, Tensor ancestor, Tensor length, Tensor(a!) keys, "
      "Tensor(b!) values, Tensor inverse_frequency, float rope_scale, Tensor norms, Tensor? head_norms, "
      "Tensor? qkv_bias, Tensor[] data, Tensor tables, Tensor formats, Tensor units, float eps, int window, "
      "int[] taps) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(dart, CPU, m) { m.impl("decoder_layers", &decoder_layers); }
TORCH_LIBRARY_IMPL(dart, Meta, m) { m.impl("decoder_layers", &decoder_layers_meta); }

}  // namespace dart
