// Look-ups in an n-gram table, and the records of a .trie file.
#include "ngram.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

namespace dart {
namespace {

Index index_of(const at::Tensor& array, const char* name) {
  TORCH_CHECK(array.device().is_cpu() && array.is_contiguous(), "ngram: ", name, " must be contiguous on the CPU");
  if (array.scalar_type() == at::kInt) return {array.const_data_ptr<int32_t>(), nullptr};
  TORCH_CHECK(array.scalar_type() == at::kLong, "ngram: ", name, " must be int32 or int64");
  return {nullptr, array.const_data_ptr<int64_t>()};
}

const int32_t* ints(const at::Tensor& array, int64_t size, const char* name) {
  TORCH_CHECK(array.device().is_cpu() && array.scalar_type() == at::kInt && array.is_contiguous() &&
                  array.numel() == size,
              "ngram: ", name, " must be contiguous int32 [", size, "] on the CPU");
  return array.const_data_ptr<int32_t>();
}

std::tuple<at::Tensor, at::Tensor> ngram_lookup(at::TensorList arrays, int64_t order, int64_t bits,
                                                const at::Tensor& contexts, const at::Tensor& tokens) {
  const NgramTable table = ngram_table(arrays, order, bits);
  TORCH_CHECK(contexts.scalar_type() == at::kLong && tokens.scalar_type() == at::kLong && contexts.dim() == 2 &&
                  tokens.dim() == 2 && contexts.size(0) == tokens.size(0) && contexts.size(1) >= 1,
              "ngram_lookup: contexts int64 [B, n] and tokens int64 [B, K], got ", contexts.sizes(), " and ",
              tokens.sizes());
  const at::Tensor from = contexts.contiguous(), wanted = tokens.contiguous();
  at::Tensor probability = at::empty(tokens.sizes(), tokens.options().dtype(at::kFloat));
  at::Tensor matched = at::empty(tokens.sizes(), tokens.options());
  const int64_t batch = from.size(0), width = from.size(1), k = wanted.size(1);
  const int longest = int(std::min<int64_t>(table.order - 1, width));
  const int64_t* in = from.const_data_ptr<int64_t>();
  const int64_t* token = wanted.const_data_ptr<int64_t>();
  float* out = probability.mutable_data_ptr<float>();
  int64_t* length_out = matched.mutable_data_ptr<int64_t>();
  at::parallel_for(0, batch, 64, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> keys((end - begin) * longest);
    for (int64_t row = begin; row < end; ++row)
      for (int length = 1; length <= longest; ++length) {
        const int64_t key = NgramTable::key(in + (row + 1) * width - length, length);
        table.prefetch_bucket(keys[(row - begin) * longest + length - 1] = key);
      }
    for (int64_t row = begin; row < end; ++row) {
      NgramTable::List list[NgramTable::kMaxOrder];
      for (int length = 1; length <= longest; ++length)
        list[length] = table.find(keys[(row - begin) * longest + length - 1]);
      for (int64_t i = row * k; i < (row + 1) * k; ++i) {
        out[i] = 0.0f;
        length_out[i] = 0;
        for (int length = longest; length > 0; --length) {
          const float q = table.frequency(list[length], token[i]);
          if (q < 0) continue;
          out[i] = q;
          length_out[i] = length;
          break;
        }
      }
    }
  });
  return {probability, matched};
}

std::tuple<at::Tensor, at::Tensor> ngram_lookup_meta(at::TensorList /*arrays*/, int64_t /*order*/, int64_t /*bits*/,
                                                     const at::Tensor& /*contexts*/, const at::Tensor& tokens) {
  return {at::empty_symint(tokens.sym_sizes(), tokens.options().dtype(at::kFloat)),
          at::empty_symint(tokens.sym_sizes(), tokens.options())};
}

// Where the records of a .trie block (int32 words) start, at most `most`, and where the next one would. A record
// is 6 words and 3 for each of its children, whose number lies in words 4 and 5.
std::tuple<at::Tensor, int64_t> trie_records(const at::Tensor& words, int64_t most) {
  TORCH_CHECK(words.device().is_cpu() && words.scalar_type() == at::kInt && words.is_contiguous(),
              "trie_records: words must be contiguous int32 on the CPU");
  const int64_t size = words.numel();
  const int32_t* word = words.const_data_ptr<int32_t>();
  at::Tensor starts = at::empty({std::min(most, size / 6 + 1)}, words.options().dtype(at::kLong));
  int64_t* start = starts.mutable_data_ptr<int64_t>();
  int64_t at = 0, count = 0;
  while (at + 6 <= size && count < most) {
    const uint64_t children = uint64_t(uint32_t(word[at + 4])) | uint64_t(uint32_t(word[at + 5])) << 32;
    start[count++] = at;
    at += 6 + 3 * int64_t(std::min<uint64_t>(children, uint64_t(1) << 48));
  }
  return {starts.narrow(0, 0, count), at};
}

}  // namespace

NgramTable ngram_table(at::TensorList arrays, int64_t order, int64_t bits) {
  TORCH_CHECK(arrays.size() == 6, "ngram: a table has six arrays, not ", arrays.size());
  TORCH_CHECK(order >= 2 && order <= NgramTable::kMaxOrder && bits >= 1 && bits <= 40, "ngram: order ", order,
              " or bits ", bits, " out of range");
  const int64_t contexts = arrays[1].numel(), pairs = arrays[4].numel();
  TORCH_CHECK(arrays[0].numel() == (int64_t(1) << bits) + 1 && arrays[2].numel() == contexts + 1,
              "ngram: bucket must be [2^bits + 1] and first [contexts + 1]");
  const at::Tensor& context = arrays[1];
  TORCH_CHECK(context.device().is_cpu() && context.scalar_type() == at::kLong && context.is_contiguous(),
              "ngram: context must be contiguous int64 on the CPU");
  return {int(order),
          NgramTable::kKeyBits + 2 - int(bits),
          index_of(arrays[0], "bucket"),
          index_of(arrays[2], "first"),
          context.const_data_ptr<int64_t>(),
          ints(arrays[3], contexts, "total"),
          ints(arrays[4], pairs, "token"),
          ints(arrays[5], pairs, "count"),
          contexts,
          pairs};
}

}  // namespace dart

TORCH_LIBRARY_FRAGMENT(dart, m) {
  m.def(
      "ngram_lookup(Tensor[] arrays, int order, int bits, Tensor contexts, Tensor tokens) -> (Tensor, Tensor)");
  m.def("trie_records(Tensor words, int most) -> (Tensor, int)");
}

TORCH_LIBRARY_IMPL(dart, CPU, m) {
  m.impl("ngram_lookup", &dart::ngram_lookup);
  m.impl("trie_records", &dart::trie_records);
}

TORCH_LIBRARY_IMPL(dart, Meta, m) { m.impl("ngram_lookup", &dart::ngram_lookup_meta); }
