// linear4 with AVX-VNNI: AVX2 with the four-way dot product in one instruction.
#include "linear4.h"

#if defined(__x86_64__)
#include <immintrin.h>
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avxvnni")
#include "linear4_avx2.h"

namespace dart {
namespace {

struct AvxVnni : Avx2 {
  static constexpr bool kWideIsSigned = false;
  template <bool WIDE>
  static Int dot(Int sum, Int w, Int q) {
    return _mm256_dpbusd_avx_epi32(sum, w, q);
  }
};

}  // namespace
const InstructionSet kAvxVnni = instructions<AvxVnni>("avx_vnni");
}  // namespace dart
#pragma GCC pop_options
#else
namespace dart {
const InstructionSet kAvxVnni{"avx_vnni"};
}
#endif
