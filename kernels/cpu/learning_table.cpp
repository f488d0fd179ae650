// The learning n-gram table: `learn_reference` and `grow_reference` of kernels/learning_table.py, word for word.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "learning_table.h"

using namespace dart;

namespace {

constexpr int kMaxNodes = 64;

int64_t scalar(const at::Tensor& value, const char* name) {
  TORCH_CHECK(value.dtype() == at::kLong && value.numel() == 1, name, " must be int64 [1]");
  return value.const_data_ptr<int64_t>()[0];
}

void count_successor(int32_t* ways, int32_t* counts, int32_t token) {
  int way = 0;
  for (int i = 0; i < kWays; ++i) {
    if (counts[i] > 0 && ways[i] == token) {
      ++counts[i];
      return;
    }
    if (counts[i] < counts[way]) way = i;
  }
  ways[way] = token;
  counts[way] = 1;
}

void learn(const at::Tensor& keys, const at::Tensor& tokens, const at::Tensor& counts, const at::Tensor& stamps,
           const at::Tensor& history, const at::Tensor& length, const at::Tensor& count) {
  const int64_t end = scalar(length, "length") + 1, start = end - scalar(count, "count");
  const LearningTable table = learning_table(keys, tokens, counts);
  TORCH_CHECK(stamps.dtype() == at::kInt && stamps.numel() == keys.numel(), "stamps must be int32 [slots]");
  TORCH_CHECK(history.dtype() == at::kLong && history.is_contiguous() && end >= 0 && end <= history.numel(),
              "history must be a contiguous int64 tensor that holds the root");
  int32_t* stamp = stamps.data_ptr<int32_t>();
  const int64_t* text = history.data_ptr<int64_t>();
  uint64_t context[kContexts];
  for (int64_t position = std::max<int64_t>(start, 1); position < end; ++position) {
    const int found = context_keys(text, text + position, context);
    for (int i = 0; i < found; ++i) {
      int64_t slot = table.find(context[i]);
      if (slot < 0) {
        uint64_t best = (context[i] >> 1) & table.mask;
        for (int probe = 0; probe < kProbes; ++probe) {
          const uint64_t other = ((context[i] >> 1) + probe) & table.mask;
          if (table.keys[other] == 0) {
            best = other;
            break;
          }
          if (stamp[other] < stamp[best]) best = other;
        }
        slot = static_cast<int64_t>(best);
        table.keys[slot] = context[i];
        std::fill_n(table.counts + slot * kWays, kWays, 0);
      }
      stamp[slot] = static_cast<int32_t>(position);
      count_successor(table.tokens + slot * kWays, table.counts + slot * kWays, static_cast<int32_t>(text[position]));
    }
  }
}

// The most probable next tokens after [first, last), best first, at most kWays of them.
int successors(const LearningTable& table, const int64_t* first, const int64_t* last, Successor* out) {
  Successor mixed[kMostSuccessors];
  double left;
  const int size = mixture(table, first, last, mixed, left);
  const int kept = std::min(size, kWays);
  std::partial_sort(mixed, mixed + kept, mixed + size, [](const Successor& a, const Successor& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.token < b.token;
  });
  std::copy_n(mixed, kept, out);
  return kept;
}

struct Candidate {
  double probability;
  int pushed, parent, rank;
  int64_t token;
  bool operator<(const Candidate& other) const {  // std::push_heap keeps the greatest first
    return probability != other.probability ? probability < other.probability : pushed > other.pushed;
  }
};

using Tree = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

Tree grow(const at::Tensor& keys, const at::Tensor& tokens, const at::Tensor& counts, const at::Tensor& history,
          const at::Tensor& root, int64_t nodes, double floor) {
  const int64_t length = scalar(root, "length");
  const LearningTable table = learning_table(keys, tokens, counts);
  TORCH_CHECK(history.dtype() == at::kLong && history.is_contiguous() && length >= 0 && length < history.numel(),
              "history must be a contiguous int64 tensor that holds the root");
  TORCH_CHECK(nodes >= 1 && nodes <= kMaxNodes, "a tree has 1 to 64 nodes, not ", nodes);
  at::Tensor out_tokens = at::zeros({nodes}, at::kLong), out_parents = at::full({nodes}, -1, at::kLong);
  at::Tensor out_depths = at::zeros({nodes}, at::kLong), out_ancestors = at::empty({nodes}, at::kLong);
  at::Tensor out_scores = at::zeros({nodes}, at::kFloat), out_ranks = at::zeros({nodes}, at::kLong);
  at::Tensor out_count = at::empty({1}, at::kLong);
  int64_t *token = out_tokens.data_ptr<int64_t>(), *parent = out_parents.data_ptr<int64_t>();
  int64_t *depth = out_depths.data_ptr<int64_t>(), *ancestor = out_ancestors.data_ptr<int64_t>();
  int64_t* rank = out_ranks.data_ptr<int64_t>();
  float* score = out_scores.data_ptr<float>();
  for (int64_t row = 0; row < nodes; ++row) ancestor[row] = static_cast<int64_t>(1ull << row);

  double probability[kMaxNodes];
  int64_t paths[kMaxNodes][kLongest];  // the last tokens of each node's path, filled from the right
  int path_size[kMaxNodes];
  const int64_t* text = history.data_ptr<int64_t>();
  path_size[0] = static_cast<int>(std::min<int64_t>(length + 1, kLongest));
  std::copy_n(text + length + 1 - path_size[0], path_size[0], paths[0] + kLongest - path_size[0]);
  probability[0] = 1.0;
  token[0] = text[length];
  score[0] = 1.0f;

  std::vector<Candidate> queue;
  queue.reserve(kMaxNodes * kWays);
  int count = 1, pushed = 0;
  while (true) {
    const int node = count - 1;
    Successor next[kWays];
    const int found = successors(table, paths[node] + kLongest - path_size[node], paths[node] + kLongest, next);
    for (int i = 0; i < found; ++i) {
      const double path_probability = probability[node] * next[i].probability;
      if (path_probability < floor) continue;
      queue.push_back({path_probability, pushed++, node, i, next[i].token});
      std::push_heap(queue.begin(), queue.end());
    }
    if (count == nodes || queue.empty()) break;
    std::pop_heap(queue.begin(), queue.end());
    const Candidate best = queue.back();
    queue.pop_back();
    token[count] = best.token;
    parent[count] = best.parent;
    depth[count] = depth[best.parent] + 1;
    ancestor[count] |= ancestor[best.parent];
    score[count] = static_cast<float>(best.probability);
    rank[count] = best.rank;
    probability[count] = best.probability;
    std::copy_n(paths[best.parent] + 1, kLongest - 1, paths[count]);
    paths[count][kLongest - 1] = best.token;
    path_size[count] = std::min(path_size[best.parent] + 1, kLongest);
    ++count;
  }
  out_count.data_ptr<int64_t>()[0] = count;
  return {out_tokens, out_parents, out_depths, out_ancestors, out_scores, out_ranks, out_count};
}

void learn_meta(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                const at::Tensor&, const at::Tensor&) {}

Tree grow_meta(const at::Tensor& keys, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
               int64_t nodes, double) {
  const auto rows = [&] { return at::empty({nodes}, keys.options()); };
  return {rows(), rows(), rows(), rows(), at::empty({nodes}, keys.options().dtype(at::kFloat)), rows(),
          at::empty({1}, keys.options())};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dart, m) {
  m.def("learn(Tensor(a!) keys, Tensor(b!) tokens, Tensor(c!) counts, Tensor(d!) stamps, Tensor history, Tensor length, Tensor count) -> ()");
  m.def("grow(Tensor keys, Tensor tokens, Tensor counts, Tensor history, Tensor length, int nodes, float floor) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(dart, CPU, m) {
  m.impl("learn", &learn);
  m.impl("grow", &grow);
}

TORCH_LIBRARY_IMPL(dart, Meta, m) {
  m.impl("learn", &learn_meta);
  m.impl("grow", &grow_meta);
}
