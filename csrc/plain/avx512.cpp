#define CAW_SCORES_ONLY 1
#include "../cpu/kernels_avx512.cpp"
