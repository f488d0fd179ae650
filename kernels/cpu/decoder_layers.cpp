// All decoder layers of a draft tree in one operator and one parallel region.
//
// A layer is five stages: norm, qkv, rotary and cache; attention; output projection and residual; norm, gate and up;
// SiLU, down projection and residual. A stage ends when its work is done, not when every thread has come: a thread that
// the operating system took off its core is not waited for, the others do its part. Up to kPrivateRows rows every thread
// quantises the activations for itself, which costs less than one more stage.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <omp.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "attention.h"
#include "linear4.h"

namespace dart {
namespace {

constexpr int kPrivateRows = 4;
constexpr size_t kLine = 64;
constexpr int kSpins = 1000;               // about 20 µs; a stage of a small model takes 5
constexpr int64_t kSerialWork = 1'000'000;  // multiply-adds of all layers below which other threads are not woken

// Memory that grows and stays: nothing is allocated once the shapes have been seen.
template <class T>
struct Buffer {
  std::vector<T> memory;
  T* need(size_t count) {
    if (memory.size() < count + kLine) memory.resize(count + kLine);
    return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory.data()) + kLine - 1) / kLine * kLine);
  }
};

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
      const auto index = [&](int split) { return (size_t(h / group * splits + split) * s.rows + r) * group + h % group; };
      float peak = -INFINITY, total = 0;
      for (int split = from; split < to; split++) peak = std::max(peak, pass.most[index(split)]);
      for (int split = from; split < to; split++) {
        weights[split - from] = std::exp(pass.most[index(split)] - peak);
        total += weights[split - from] * pass.total[index(split)];
      }
      for (int split = from; split < to; split++) weights[split - from] /= total;
      pass.set.combine(weights, to - from, pass.sums + index(from) * d, size_t(s.rows) * group * d, d, row + h * d);
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
