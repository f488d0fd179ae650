// Acceptance by one rule: `accept_reference` of kernels/accept.py, drawing only at the nodes the walk visits.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

namespace {

uint64_t mix64(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

constexpr uint64_t kStride = 0x9E3779B97F4A7C15ull;

struct Knobs {
  float temperature, top_p, min_p, penalty;
  int64_t top_k;
};


int64_t first_argmax(const float* values, int64_t size) {
  return std::max_element(values, values + size) - values;
}

// Keeps the `kept` greatest of `order` (by logit, then by token), sorted.
void sort_first(std::vector<int64_t>& order, const float* logits, size_t kept) {
  const auto before = [logits](int64_t a, int64_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  if (kept < order.size()) std::nth_element(order.begin(), order.begin() + kept, order.end(), before);
  std::sort(order.begin(), order.begin() + std::min(kept, order.size()), before);
}

// top-k: all logits that reach the k-th greatest.
void keep_top_k(std::vector<int64_t>& order, const float* logits, int64_t k) {
  if (k <= 0 || k >= static_cast<int64_t>(order.size())) return;
  std::vector<float> values(order.size());
  std::transform(order.begin(), order.end(), values.begin(), [logits](int64_t i) { return logits[i]; });
  std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<float>());
  const float threshold = values[k - 1];
  std::erase_if(order, [&](int64_t i) { return logits[i] < threshold; });
}

// top-p: the fewest most probable tokens whose probability reaches p.
void keep_top_p(std::vector<int64_t>& order, const float* logits, float p, float greatest) {
  if (p >= 1.0f) return;
  double total = 0.0;
  for (int64_t i : order) total += std::exp(static_cast<double>(logits[i] - greatest));
  // Sorting a vocabulary costs milliseconds and the kept set is small: sort ever larger heads until p is reached.
  for (size_t sorted = std::min<size_t>(256, order.size());; sorted = std::min(sorted * 8, order.size())) {
    sort_first(order, logits, sorted);
    double before = 0.0;
    for (size_t i = 0; i < sorted; ++i) {
      if (before / total >= p && i > 0) {
        order.resize(i);
        return;
      }
      before += std::exp(static_cast<double>(logits[order[i]] - greatest));
    }
    if (sorted == order.size()) return;
  }
}

int64_t draw(const float* logits, int64_t vocab, const Knobs& knobs, uint64_t seed, int64_t position,
             std::vector<float>& scaled) {
  scaled.resize(vocab);
  for (int64_t i = 0; i < vocab; ++i) scaled[i] = logits[i] / knobs.temperature;
  const float greatest = *std::max_element(scaled.begin(), scaled.end());
  const uint64_t key = mix64(mix64(seed + kStride) + static_cast<uint64_t>(position));
  const float floor = knobs.min_p > 0.0f ? greatest + std::log(knobs.min_p) : -std::numeric_limits<float>::infinity();

  // argmax(logit + Gumbel) is argmin(E / w) with w = exp(logit − max) and E = −log(u) exponential. As E ≥ 1 − u,
  // most tokens are ruled out by a multiplication, without their logarithm.
  int64_t best = -1;
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&](int64_t token) {
    if (scaled[token] < floor) return;
    const uint64_t bits = mix64(key + static_cast<uint64_t>(token + 1) * kStride);
    const double u = (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
    const double weight = std::exp(static_cast<double>(scaled[token] - greatest));
    if (1.0 - u > least * weight) return;
    const double score = -std::log(u) / weight;
    if (score < least) {
      least = score;
      best = token;
    }
  };
  if (knobs.top_k <= 0 && knobs.top_p >= 1.0f) {
    for (int64_t token = 0; token < vocab; ++token) consider(token);
    return best;
  }
  std::vector<int64_t> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  keep_top_k(order, scaled.data(), knobs.top_k);
  keep_top_p(order, scaled.data(), knobs.top_p, greatest);
  for (int64_t token : order) consider(token);
  return best;
}

using Result = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Result accept(const at::Tensor& logits, const at::Tensor& tokens, const at::Tensor& parent, const at::Tensor& depth,
              const at::Tensor& ancestor, const at::Tensor& length, const at::Tensor& seen, const at::Tensor& knobs,
              const at::Tensor& seed, const at::Tensor& limit, const at::Tensor& eos) {
  const int64_t size = tokens.numel();
  TORCH_CHECK(logits.dim() == 2 && logits.dtype() == at::kFloat && logits.is_contiguous() && logits.size(0) == size,
              "logits must be contiguous fp32 [", size, ", V]");
  for (const at::Tensor& column : {tokens, parent, depth, ancestor}) {
    TORCH_CHECK(column.dtype() == at::kLong && column.is_contiguous() && column.numel() == size,
                "tokens, parent, depth and ancestor must be contiguous int64 [", size, "]");
  }
  for (const at::Tensor& scalar : {length, seed, limit}) {
    TORCH_CHECK(scalar.dtype() == at::kLong && scalar.numel() == 1, "length, seed and limit must be int64 [1]");
  }
  TORCH_CHECK(eos.dtype() == at::kLong && eos.is_contiguous(), "eos must be contiguous int64");
  TORCH_CHECK(knobs.dtype() == at::kFloat && knobs.is_contiguous() && knobs.numel() == 5, "knobs must be fp32 [5]");
  const int64_t vocab = logits.size(1);
  TORCH_CHECK(seen.dtype() == at::kBool && seen.is_contiguous() && seen.numel() == vocab, "seen must be bool [V]");

  const float* knob = knobs.data_ptr<float>();
  const Knobs settings{knob[0], knob[2], knob[3], knob[4], static_cast<int64_t>(knob[1])};
  const int64_t *token = tokens.data_ptr<int64_t>(), *above = parent.data_ptr<int64_t>();
  const int64_t *level = depth.data_ptr<int64_t>(), *mask = ancestor.data_ptr<int64_t>();
  const int64_t *stop = eos.data_ptr<int64_t>(), *stop_end = stop + eos.numel();
  const int64_t most = limit.data_ptr<int64_t>()[0], start = length.data_ptr<int64_t>()[0];
  const uint64_t key = static_cast<uint64_t>(seed.data_ptr<int64_t>()[0]);

  at::Tensor out_path = at::empty({size}, at::kLong), out_written = at::empty({size}, at::kLong);
  at::Tensor out_count = at::empty({1}, at::kLong);
  int64_t *path = out_path.data_ptr<int64_t>(), *written = out_written.data_ptr<int64_t>();
  std::vector<float> penalised, scratch;
  int64_t node = 0, count = 0;
  while (true) {
    const float* row = logits.data_ptr<float>() + node * vocab;
    if (settings.penalty != 1.0f) {
      penalised.assign(row, row + vocab);
      const bool* context = seen.data_ptr<bool>();
      const auto penalise = [&](int64_t i) {
        penalised[i] = row[i] > 0 ? row[i] / settings.penalty : row[i] * settings.penalty;
      };
      for (int64_t i = 0; i < vocab; ++i) {
        if (context[i]) penalise(i);
      }
      for (int64_t i = 0; i < size; ++i) {
        if (static_cast<uint64_t>(mask[node]) >> i & 1) penalise(token[i]);
      }
      row = penalised.data();
    }
    const int64_t choice = settings.temperature > 0
                               ? draw(row, vocab, settings, key, start + level[node] + 1, scratch)
                               : first_argmax(row, vocab);
    TORCH_CHECK(choice >= 0, "the target's logits are not numbers");
    path[count] = node;
    written[count++] = choice;
    if (count >= most || std::find(stop, stop_end, choice) != stop_end) break;
    int64_t child = 1;
    while (child < size && !(above[child] == node && token[child] == choice)) ++child;
    if (child >= size) break;
    node = child;
  }
  for (int64_t i = count; i < size; ++i) {
    path[i] = path[count - 1];
    written[i] = written[count - 1];
  }
  out_count.data_ptr<int64_t>()[0] = count;
  return {out_path, out_written, out_count};
}

Result accept_meta(const at::Tensor& /*logits*/, const at::Tensor& tokens, const at::Tensor& /*parent*/,
                   const at::Tensor& /*depth*/, const at::Tensor& /*ancestor*/, const at::Tensor& /*length*/,
                   const at::Tensor& /*seen*/, const at::Tensor& /*knobs*/, const at::Tensor& /*seed*/,
                   const at::Tensor& /*limit*/, const at::Tensor& /*eos*/) {
  return {at::empty_symint({tokens.sym_numel()}, tokens.options()),
          at::empty_symint({tokens.sym_numel()}, tokens.options()), at::empty({1}, tokens.options())};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dart, m) {
  m.def(
      "accept(Tensor logits, Tensor tokens, Tensor parent, Tensor depth, Tensor ancestor, Tensor length, Tensor seen, "
      "Tensor knobs, Tensor seed, Tensor limit, Tensor eos) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(dart, CPU, m) { m.impl("accept", &accept); }
TORCH_LIBRARY_IMPL(dart, Meta, m) { m.impl("accept", &accept_meta); }
