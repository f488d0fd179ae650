// The search of dart_core/prune.py, `build_tree_reference` there word for word.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "learning_table.h"
#include "ngram.h"

namespace dart {
namespace {

constexpr float kEpsilon = 1e-10f;
constexpr int kMaxNodes = 64, kWidest = 16;  // tokens of context a path carries

struct Extension {
  float score;
  int parent, depth, rank;  // parent: another extension, or −1 for the root
  int64_t token;
  bool ends;
};

struct Path {
  int extension;
  float score;
  int64_t context[kWidest];  // the most recent last
};

// What a candidate's probability is under both n-gram models, for one path.
class Frequencies {
 public:
  Frequencies(const NgramTable* table, const LearningTable* learned, float weight, int width)
      : table_(table), learned_(learned), weight_(weight), width_(width) {}

  void prepare(const int64_t* context) {
    if (table_) {
      lengths_ = std::min(table_->order - 1, width_);
      for (int length = 1; length <= lengths_; ++length)
        lists_[length] = table_->find(NgramTable::key(context + width_ - length, length));
    }
    if (learned_) {
      const int64_t* from = context;
      while (from < context + width_ && *from < 0) ++from;
      successors_ = mixture(*learned_, from, context + width_, mixed_, left_);
    }
  }

  // `prior` is the head's probability of the token, which gets what the learning table leaves.
  float operator()(int64_t token, float prior) const {
    float q = 0.0f;
    for (int length = table_ ? lengths_ : 0; length > 0; --length) {
      const float found = table_->frequency(lists_[length], token);
      if (found < 0) continue;
      q = found;
      break;
    }
    if (!learned_) return q;
    double known = 0.0;
    for (int i = 0; i < successors_; ++i)
      if (mixed_[i].token == token) known = mixed_[i].probability;
    const float recent = float(known + left_ * prior);
    return table_ ? (1.0f - weight_) * q + weight_ * recent : recent;
  }

 private:
  const NgramTable* table_;
  const LearningTable* learned_;
  float weight_;
  int width_, lengths_ = 0, successors_ = 0;
  NgramTable::List lists_[NgramTable::kMaxOrder];
  Successor mixed_[kMostSuccessors];
  double left_ = 1.0;
};

bool better(const Extension& a, const Extension& b, int i, int j) { return a.score != b.score ? a.score > b.score : i < j; }

using Tree = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

Tree prune_tree(const at::Tensor& tokens, const at::Tensor& probability, const at::Tensor& context,
                const at::Tensor& eos, at::TensorList ngram, int64_t order, int64_t bits, at::TensorList learned,
                double level_power, double logit_decay, double ngram_weight, double learned_weight, int64_t beam,
                int64_t nodes) {
  TORCH_CHECK(tokens.dim() == 2 && tokens.scalar_type() == at::kLong && tokens.is_contiguous() &&
                  probability.sizes() == tokens.sizes() && probability.scalar_type() == at::kFloat &&
                  probability.is_contiguous() && tokens.device().is_cpu() && probability.device().is_cpu(),
              "prune_tree: tokens int64 and probability fp32 [depth, k], contiguous, on the CPU");
  TORCH_CHECK(context.scalar_type() == at::kLong && context.dim() == 1 && context.size(0) >= 1 &&
                  context.is_contiguous() && eos.scalar_type() == at::kLong && eos.is_contiguous(),
              "prune_tree: context int64 [n ≥ 1] and eos int64, contiguous");
  TORCH_CHECK(nodes >= 1 && nodes <= kMaxNodes && beam >= 1, "prune_tree: 1 to 64 nodes, not ", nodes);
  const int depth = int(tokens.size(0)), k = int(tokens.size(1));
  const int width = int(std::min<int64_t>(context.size(0), kWidest));
  const bool has_table = !ngram.empty(), has_learned = !learned.empty();
  const NgramTable table = has_table ? ngram_table(ngram, order, bits) : NgramTable{};
  const LearningTable recent =
      has_learned ? learning_table(learned[0], learned[1], learned[2]) : LearningTable{};
  Frequencies frequency(has_table ? &table : nullptr, has_learned ? &recent : nullptr, float(learned_weight), width);
  const bool has_ngram = has_table || has_learned;

  const int64_t* token = tokens.const_data_ptr<int64_t>();
  const float* p = probability.const_data_ptr<float>();
  const int64_t *ends = eos.const_data_ptr<int64_t>(), *ends_last = ends + eos.numel();
  const int64_t* recent_tokens = context.const_data_ptr<int64_t>() + context.size(0) - width;

  std::vector<Extension> extensions;
  extensions.reserve(size_t(k) * (1 + size_t(beam) * depth));
  std::vector<Path> paths(1), next;
  paths[0] = {-1, 0.0f, {}};
  std::copy_n(recent_tokens, width, paths[0].context);
  std::vector<float> logit_term(k);
  std::vector<int> order_of;
  for (int level = 0; level < depth; ++level) {
    const float level_weight = float(std::pow(level + 1, -level_power));
    const float logit_weight = float(std::pow(logit_decay, level)), gram_weight = float(ngram_weight);
    const float unseen = std::log(kEpsilon);
    const int64_t* level_token = token + size_t(level) * k;
    for (int i = 0; i < k; ++i) logit_term[i] = logit_weight * std::log(p[size_t(level) * k + i] + kEpsilon);
    const int start = int(extensions.size());
    for (const Path& path : paths) {
      if (level > 0 && has_ngram) frequency.prepare(path.context);
      for (int i = 0; i < k; ++i) {
        float step = logit_term[i];
        if (level > 0 && has_ngram) {
          const float q = frequency(level_token[i], p[size_t(level) * k + i]);
          step += gram_weight * (q == 0.0f ? unseen : std::log(q + kEpsilon));
        }
        const bool is_end = std::find(ends, ends_last, level_token[i]) != ends_last;
        const float gain = level_weight * step;
        extensions.push_back({path.score + (gain < 0 ? gain : 0.0f), path.extension, level + 1, i, level_token[i],
                              is_end});
      }
    }
    if (level + 1 == depth) break;
    order_of.resize(extensions.size() - start);
    for (size_t i = 0; i < order_of.size(); ++i) order_of[i] = start + int(i);
    const int kept = int(std::min<int64_t>(beam, int64_t(order_of.size())));
    std::partial_sort(order_of.begin(), order_of.begin() + kept, order_of.end(), [&](int i, int j) {
      const Extension &a = extensions[i], &b = extensions[j];
      return a.ends != b.ends ? b.ends : better(a, b, i, j);
    });
    next.resize(kept);
    for (int b = 0; b < kept; ++b) {
      const int at = order_of[b];
      const Path& from = paths[(at - start) / k];
      next[b] = {at, extensions[at].score, {}};
      std::copy(from.context + 1, from.context + width, next[b].context);
      next[b].context[width - 1] = extensions[at].token;
    }
    paths.swap(next);
  }

  order_of.resize(extensions.size());
  for (size_t i = 0; i < order_of.size(); ++i) order_of[i] = int(i);
  const int count = int(std::min<int64_t>(nodes - 1, int64_t(extensions.size())));
  std::nth_element(order_of.begin(), order_of.begin() + count, order_of.end(),
                   [&](int i, int j) { return better(extensions[i], extensions[j], i, j); });
  std::sort(order_of.begin(), order_of.begin() + count);

  const auto longs = tokens.options();
  at::Tensor out_tokens = at::zeros({nodes}, longs), out_parents = at::full({nodes}, -1, longs);
  at::Tensor out_depths = at::zeros({nodes}, longs), out_ancestors = at::empty({nodes}, longs);
  at::Tensor out_scores = at::zeros({nodes}, probability.options()), out_ranks = at::zeros({nodes}, longs);
  at::Tensor out_count = at::full({1}, count + 1, longs);
  int64_t* ancestor = out_ancestors.mutable_data_ptr<int64_t>();
  int64_t* parent = out_parents.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < nodes; ++row) ancestor[row] = int64_t(uint64_t(1) << row);
  out_tokens.mutable_data_ptr<int64_t>()[0] = context.const_data_ptr<int64_t>()[context.size(0) - 1];
  out_scores.mutable_data_ptr<float>()[0] = 1.0f;
  for (int row = 1; row <= count; ++row) {
    const Extension& node = extensions[order_of[row - 1]];
    int above = 0;
    if (node.parent >= 0)
      above = int(std::lower_bound(order_of.begin(), order_of.begin() + row - 1, node.parent) - order_of.begin()) + 1;
    parent[row] = above;
    ancestor[row] |= ancestor[above];
    out_tokens.mutable_data_ptr<int64_t>()[row] = node.token;
    out_depths.mutable_data_ptr<int64_t>()[row] = node.depth;
    out_scores.mutable_data_ptr<float>()[row] = p[size_t(node.depth - 1) * k + node.rank];
    out_ranks.mutable_data_ptr<int64_t>()[row] = node.rank;
  }
  return {out_tokens, out_parents, out_depths, out_ancestors, out_scores, out_ranks, out_count};
}

Tree prune_tree_meta(const at::Tensor& tokens, const at::Tensor& probability, const at::Tensor& /*context*/,
                     const at::Tensor& /*eos*/, at::TensorList /*ngram*/, int64_t /*order*/, int64_t /*bits*/,
                     at::TensorList /*learned*/, double /*level_power*/, double /*logit_decay*/,
                     double /*ngram_weight*/, double /*learned_weight*/, int64_t /*beam*/, int64_t nodes) {
  const auto longs = tokens.options();
  return {at::empty({nodes}, longs), at::empty({nodes}, longs),
          at::empty({nodes}, longs), at::empty({nodes}, longs),
          at::empty({nodes}, probability.options()), at::empty({nodes}, longs),
          at::empty({1}, longs)};
}

}  // namespace
}  // namespace dart

TORCH_LIBRARY_FRAGMENT(dart, m) {
  m.def(
      "prune_tree(Tensor tokens, Tensor probability, Tensor context, Tensor eos, Tensor[] ngram, int order, int bits, "
      "Tensor[] learned, float level_power, float logit_decay, float ngram_weight, float learned_weight, int beam, "
      "int nodes) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(dart, CPU, m) { m.impl("prune_tree", &dart::prune_tree); }
TORCH_LIBRARY_IMPL(dart, Meta, m) { m.impl("prune_tree", &dart::prune_tree_meta); }
