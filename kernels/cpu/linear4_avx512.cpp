// linear4 with AVX-512 VNNI: 16 columns a vector, two vectors share each activation broadcast.
#include "linear4.h"

#if defined(__x86_64__)
#include <immintrin.h>
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")
#include "linear4_tile.h"

namespace dart {
namespace {

struct Avx512 {
  using Int = __m512i;
  using Float = __m512;
  static constexpr int kLanes = 16, kBlocks = 2, kMaxRows = dart::kMaxRows;
  static constexpr bool kWideIsSigned = false;

  static Int load_table(const uint8_t* table, bool) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  }
  static void unpack(const uint8_t* codes, Int table, Int& low, Int& high) {
    const Int pairs = _mm512_loadu_si512(codes), mask = _mm512_set1_epi8(15);
    low = _mm512_shuffle_epi8(table, _mm512_and_si512(pairs, mask));
    high = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(pairs, 4), mask));
  }
  static Int quad(const uint8_t* q) { return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(q)); }
  template <bool WIDE>
  static Int dot(Int sum, Int w, Int q) {
    return _mm512_dpbusd_epi32(sum, w, q);
  }
  static Int set(int32_t value) { return _mm512_set1_epi32(value); }
  static Float set(float value) { return _mm512_set1_ps(value); }
  static Float zero() { return _mm512_setzero_ps(); }
  static Float to_float(Int sum) { return _mm512_cvtepi32_ps(sum); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float half(const uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static void store(float* to, Float value) { _mm512_storeu_ps(to, value); }

  static constexpr int kColumns = 4, kPairs = 6;
  static Float load(const float* from) { return _mm512_loadu_ps(from); }
  static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
  static Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
  static Float round(Float a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT); }
  static Float times_power_of_2(Float a, Float n) { return _mm512_scalef_ps(a, n); }
  static Float zero_below(Float value, Float x, Float limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), value);
  }
  static float sum(Float a) { return _mm512_reduce_add_ps(a); }
  static float most(Float a) { return _mm512_reduce_max_ps(a); }
  // 16 rows of 16 → their transpose.
  static void transpose16(const float* from, size_t from_stride, float* to, size_t to_stride) {
    Float a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = load(from + i * from_stride);
    for (int i = 0; i < 16; i += 2) {
      b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
      for (int j = 0; j < 2; j++) {
        const __m512d low = _mm512_castps_pd(b[i + j]), high = _mm512_castps_pd(b[i + j + 2]);
        a[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
        a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
      }
    // a[4 i + c] holds, in its quarter q, column 4 q + c of rows 4 i … 4 i + 3.
    for (int c = 0; c < 4; c++) {
      const Float even01 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x88), odd01 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xdd);
      const Float even23 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x88);
      const Float odd23 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xdd);
      store(to + c * to_stride, _mm512_shuffle_f32x4(even01, even23, 0x88));
      store(to + (8 + c) * to_stride, _mm512_shuffle_f32x4(even01, even23, 0xdd));
      store(to + (4 + c) * to_stride, _mm512_shuffle_f32x4(odd01, odd23, 0x88));
      store(to + (12 + c) * to_stride, _mm512_shuffle_f32x4(odd01, odd23, 0xdd));
    }
  }

  static float largest(const float* x, int k, float& poison) {
    Float most = zero(), bad = zero();
    for (int i = 0; i < k; i += 16) {
      const Float v = _mm512_loadu_ps(x + i);
      most = _mm512_max_ps(most, _mm512_abs_ps(v));
      bad = fma(v, zero(), bad);
    }
    poison = _mm512_reduce_add_ps(bad);
    return _mm512_reduce_max_ps(most);
  }
  static int32_t round_group(const float* x, float inverse, int8_t* q, int group) {
    Int sum = _mm512_setzero_si512();
    for (int i = 0; i < group; i += 16) {
      const Int v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), set(inverse)));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q + i), _mm512_cvtsepi32_epi8(v));
      sum = _mm512_add_epi32(sum, v);
    }
    return _mm512_reduce_add_epi32(sum);
  }
};

}  // namespace
const InstructionSet kAvx512Vnni = instructions<Avx512>("avx512_vnni");
}  // namespace dart
#pragma GCC pop_options
#else
namespace dart {
const InstructionSet kAvx512Vnni{"avx512_vnni"};
}
#endif
