// quantized_linear for AVX2 with the products of bytes that desktop processors have had since 2021 (AVX-VNNI).
#include "kernels_common.h"

#if CAW_BUILDS_DOTS
#define CAW_DOTS 1
#ifndef CAW_SET  // a test has other instructions in their place
#define CAW_SET "avxvnni,avx2,fma,f16c"
#endif
#include "quantized_avx2.cpp"
#endif
