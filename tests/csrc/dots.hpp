// AVX-VNNI's product of bytes as AVX-512 has it, in the same registers with the same sums, for processors without the former.
#pragma once

#include <immintrin.h>

#define _mm256_dpbusd_avx_epi32 _mm256_dpbusd_epi32
#define CAW_SET "avx512vnni,avx512vl,avx512f,avx2,fma,f16c"
