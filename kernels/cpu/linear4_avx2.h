// The 256-bit vector type of AVX2 and AVX-VNNI: 8 columns a vector. Included inside a target pragma.
#pragma once
#include <immintrin.h>

#include "linear4_tile.h"

namespace dart {
namespace {

struct Avx2 {
  using Int = __m256i;
  using Float = __m256;
  static constexpr int kLanes = 8, kBlocks = 2, kMaxRows = 4;
  static constexpr bool kWideIsSigned = true;

  static Int load_table(const uint8_t* table, bool wide) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm256_broadcastsi128_si256(wide ? _mm_xor_si128(bytes, _mm_set1_epi8(-128)) : bytes);
  }
  static void unpack(const uint8_t* codes, Int table, Int& low, Int& high) {
    const Int pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)), mask = _mm256_set1_epi8(15);
    low = _mm256_shuffle_epi8(table, _mm256_and_si256(pairs, mask));
    high = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(pairs, 4), mask));
  }
  static Int quad(const uint8_t* q) { return _mm256_set1_epi32(*reinterpret_cast<const int32_t*>(q)); }
  // maddubs adds two products in 16 bits: 127 · 127 · 2 and 128 · 127 · 2 both fit.
  template <bool WIDE>
  static Int dot(Int sum, Int w, Int q) {
    const Int pairs =
        WIDE ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w)) : _mm256_maddubs_epi16(w, q);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static Int set(int32_t value) { return _mm256_set1_epi32(value); }
  static Float set(float value) { return _mm256_set1_ps(value); }
  static Float zero() { return _mm256_setzero_ps(); }
  static Float to_float(Int sum) { return _mm256_cvtepi32_ps(sum); }
  static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float half(const uint8_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static void store(float* to, Float value) { _mm256_storeu_ps(to, value); }

  static constexpr int kColumns = 2, kPairs = 4;
  static Float load(const float* from) { return _mm256_loadu_ps(from); }
  static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
  static Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
  static Float round(Float a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Float times_power_of_2(Float a, Float n) {
    const Int exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(a, _mm256_castsi256_ps(exponent));
  }
  static Float zero_below(Float value, Float x, Float limit) {
    return _mm256_and_ps(value, _mm256_cmp_ps(x, limit, _CMP_NLT_UQ));
  }
  static float sum(Float a) {
    float lanes[8];
    store(lanes, a);
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
  }
  static float most(Float a) {
    float lanes[8], result;
    store(lanes, a);
    result = lanes[0];
    for (float lane : lanes) result = lane > result ? lane : result;
    return result;
  }
  static void transpose16(const float* from, size_t from_stride, float* to, size_t to_stride) {
    for (int i = 0; i < 16; i++)
      for (int j = 0; j < 16; j++) to[j * to_stride + i] = from[i * from_stride + j];
  }

  static float largest(const float* x, int k, float& poison) {
    Float most = zero(), bad = zero();
    const Float sign = set(-0.0f);
    for (int i = 0; i < k; i += 8) {
      const Float v = _mm256_loadu_ps(x + i);
      most = _mm256_max_ps(most, _mm256_andnot_ps(sign, v));
      bad = fma(v, zero(), bad);
    }
    float lanes[8], bads[8], result = 0;
    store(lanes, most);
    store(bads, bad);
    poison = 0;
    for (int i = 0; i < 8; i++) {
      result = lanes[i] > result ? lanes[i] : result;
      poison += bads[i];
    }
    return result;
  }
  static int32_t round_group(const float* x, float inverse, int8_t* q, int group) {
    int32_t sum = 0;
    for (int i = 0; i < group; i += 8) {
      int32_t lanes[8];
      const Int v = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), set(inverse)));
      _mm256_storeu_si256(reinterpret_cast<Int*>(lanes), v);
      for (int j = 0; j < 8; j++) {
        q[i + j] = int8_t(lanes[j]);
        sum += lanes[j];
      }
    }
    return sum;
  }
};

}  // namespace
}  // namespace dart
