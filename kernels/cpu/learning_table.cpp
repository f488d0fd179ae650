// The learning n-gram table: `learn_reference` and `grow_reference` of kernels/learning_table.py, word for word.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

namespace {

constexpr int kWays = 4, kProbes = 4, kLongest = 8, kMaxNodes = 64;
constexpr int kContextLengths[] = {1, 2, 3, 4, 6, 8};
constexpr int kContexts = 6;

uint64_t mix64(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

// Keys of the contexts that end [first, last), by length; returns how many fit.
int context_keys(const int64_t* first, const int64_t* last, uint64_t* keys) {
  uint64_t key = 0;
  int found = 0;
  for (int used = 1; used <= kLongest && last - used >= first; ++used) {
    key = mix64(key + static_cast<uint64_t>(last[-used]) + 1);
    if (used == kContextLengths[found]) keys[found++] = key | 1;
  }
  return found;
}

struct Table {
  uint64_t* keys;
  int32_t* tokens;
  int32_t* counts;
  uint64_t mask;

  int64_t find(uint64_t key) const {
    for (int i = 0; i < kProbes; ++i) {
      const uint64_t slot = ((key >> 1) + i) & mask;
      if (keys[slot] == key) return static_cast<int64_t>(slot);
    }
    return -1;
  }
};

Table view(const at::Tensor& keys, const at::Tensor& tokens, const at::Tensor& counts) {
  TORCH_CHECK(keys.dtype() == at::kLong && keys.is_contiguous(), "keys must be a contiguous int64 tensor");
  const int64_t slots = keys.numel();
  TORCH_CHECK(slots >= kProbes && (slots & (slots - 1)) == 0, "the table must have a power of two of slots, not ", slots);
  for (const at::Tensor& ways : {tokens, counts}) {
    TORCH_CHECK(ways.dtype() == at::kInt && ways.is_contiguous() && ways.numel() == slots * kWays,
                "tokens and counts must be contiguous int32 [slots, 4] tensors");
  }
  return {reinterpret_cast<uint64_t*>(keys.data_ptr<int64_t>()), tokens.data_ptr<int32_t>(),
          counts.data_ptr<int32_t>(), static_cast<uint64_t>(slots - 1)};
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
           const at::Tensor& history, int64_t start, int64_t end) {
  const Table table = view(keys, tokens, counts);
  TORCH_CHECK(stamps.dtype() == at::kInt && stamps.numel() == keys.numel(), "stamps must be int32 [slots]");
  TORCH_CHECK(history.dtype() == at::kLong && history.is_contiguous() && end <= history.numel(),
              "history must be a contiguous int64 tensor of at least `end` tokens");
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

struct Successor {
  double probability;
  int64_t token;
};

// The most probable next tokens after [first, last), best first, at most kWays of them.
int successors(const Table& table, const int64_t* first, const int64_t* last, Successor* out) {
  uint64_t context[kContexts];
  Successor mixed[kContexts * kWays];
  int size = 0;
  double left = 1.0;
  for (int i = context_keys(first, last, context) - 1; i >= 0; --i) {
    const int64_t slot = table.find(context[i]);
    if (slot < 0) continue;
    const int32_t* ways = table.tokens + slot * kWays;
    const int32_t* counts = table.counts + slot * kWays;
    int total = 0, distinct = 0;
    for (int way = 0; way < kWays; ++way) {
      total += counts[way];
      distinct += counts[way] > 0;
    }
    for (int way = 0; way < kWays; ++way) {
      if (counts[way] == 0) continue;
      int at = 0;
      while (at < size && mixed[at].token != ways[way]) ++at;
      if (at == size) mixed[size++] = {0.0, ways[way]};
      mixed[at].probability += left * counts[way] / (total + distinct);
    }
    left *= static_cast<double>(distinct) / (total + distinct);
  }
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
          int64_t length, int64_t nodes, double floor) {
  const Table table = view(keys, tokens, counts);
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

}  // namespace

TORCH_LIBRARY_FRAGMENT(dart, m) {
  m.def("learn(Tensor(a!) keys, Tensor(b!) tokens, Tensor(c!) counts, Tensor(d!) stamps, Tensor history, int start, int end) -> ()");
  m.def("grow(Tensor keys, Tensor tokens, Tensor counts, Tensor history, int length, int nodes, float floor) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(dart, CPU, m) {
  m.impl("learn", &learn);
  m.impl("grow", &grow);
}
