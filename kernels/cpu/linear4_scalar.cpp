// linear4 for any CPU, and the choice of the instruction set.
#include <atomic>
#include <cmath>
#include <cstring>

#include "linear4_tile.h"

namespace dart {
namespace {

struct Scalar {
  using Int = int32_t;
  using Float = float;
  struct Quad {
    int8_t value[4];
  };
  struct Table {
    uint8_t value[16];
  };
  static constexpr int kLanes = 1, kBlocks = 1, kMaxRows = 1;
  static constexpr bool kWideIsSigned = false;

  static Table load_table(const uint8_t* table, bool) {
    Table copy;
    std::memcpy(copy.value, table, 16);
    return copy;
  }
  static void unpack(const uint8_t* codes, const Table& table, Int& low, Int& high) {
    uint8_t bytes[2][4];
    for (int i = 0; i < 4; i++) {
      bytes[0][i] = table.value[codes[i] & 15];
      bytes[1][i] = table.value[codes[i] >> 4];
    }
    std::memcpy(&low, bytes[0], 4);
    std::memcpy(&high, bytes[1], 4);
  }
  static Quad quad(const uint8_t* q) {
    Quad copy;
    std::memcpy(copy.value, q, 4);
    return copy;
  }
  template <bool WIDE>
  static Int dot(Int sum, Int w, Quad q) {
    uint8_t bytes[4];
    std::memcpy(bytes, &w, 4);
    for (int i = 0; i < 4; i++) sum += bytes[i] * q.value[i];
    return sum;
  }
  static Int set(int32_t value) { return value; }
  static Float set(float value) { return value; }
  static Float zero() { return 0.0f; }
  static Float to_float(Int sum) { return float(sum); }
  static Float fma(Float a, Float b, Float c) { return std::fma(a, b, c); }
  static Float half(const uint8_t* from) {
    uint16_t bits;
    std::memcpy(&bits, from, 2);
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const float size = exponent == 31 ? (fraction ? NAN : INFINITY)
                       : exponent     ? std::ldexp(float(fraction + 1024), exponent - 25)
                                      : std::ldexp(float(fraction), -24);
    return bits & 0x8000 ? -size : size;
  }
  static void store(float* to, Float value) { *to = value; }

  static constexpr int kColumns = 4, kPairs = 2;
  static Float load(const float* from) { return *from; }
  static Float add(Float a, Float b) { return a + b; }
  static Float mul(Float a, Float b) { return a * b; }
  static Float div(Float a, Float b) { return a / b; }
  static Float max(Float a, Float b) { return a > b ? a : b; }
  static Float round(Float a) { return std::nearbyint(a); }
  static Float times_power_of_2(Float a, Float n) { return n > -200 ? std::ldexp(a, int(n)) : 0.0f; }
  static Float zero_below(Float value, Float x, Float limit) { return x < limit ? 0.0f : value; }
  static float sum(Float a) { return a; }
  static float most(Float a) { return a; }
  static void transpose16(const float* from, size_t from_stride, float* to, size_t to_stride) {
    for (int i = 0; i < 16; i++)
      for (int j = 0; j < 16; j++) to[j * to_stride + i] = from[i * from_stride + j];
  }

  static float largest(const float* x, int k, float& poison) {
    float most = 0;
    poison = 0;
    for (int i = 0; i < k; i++) {
      most = std::fabs(x[i]) > most ? std::fabs(x[i]) : most;
      poison += x[i] * 0.0f;
    }
    return most;
  }
  static int32_t round_group(const float* x, float inverse, int8_t* q, int group) {
    int32_t sum = 0;
    for (int i = 0; i < group; i++) {
      const int value = int(std::nearbyint(x[i] * inverse));
      q[i] = int8_t(value);
      sum += value;
    }
    return sum;
  }
};

bool supported(const InstructionSet& set) {
  if (set.tile == nullptr) return false;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (&set == &kAvx512Vnni)
    return avx2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
  if (&set == &kAvxVnni) return avx2 && __builtin_cpu_supports("avxvnni");
  if (&set == &kAvx2) return avx2;
#endif
  return true;
}

const InstructionSet* const kAll[] = {&kAvx512Vnni, &kAvxVnni, &kAvx2, &kScalar};

const InstructionSet* best() {
  for (const InstructionSet* set : kAll)
    if (supported(*set)) return set;
  return &kScalar;
}

std::atomic<const InstructionSet*> chosen{nullptr};

}  // namespace

const InstructionSet kScalar = instructions<Scalar>("scalar");

const InstructionSet& instruction_set() {
  const InstructionSet* set = chosen.load(std::memory_order_relaxed);
  if (set == nullptr) chosen.store(set = best(), std::memory_order_relaxed);
  return *set;
}

bool select_instruction_set(const char* name) {
  for (const InstructionSet* set : kAll)
    if (std::strcmp(set->name, name) == 0 && supported(*set)) {
      chosen.store(set, std::memory_order_relaxed);
      return true;
    }
  return false;
}

}  // namespace dart
