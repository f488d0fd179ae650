// linear4 with AVX2 and FMA.
#include "linear4.h"

#if defined(__x86_64__)
#include <immintrin.h>
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#include "linear4_avx2.h"

namespace dart {
const InstructionSet kAvx2 = instructions<Avx2>("avx2");
}
#pragma GCC pop_options
#else
namespace dart {
const InstructionSet kAvx2{"avx2"};
}
#endif
