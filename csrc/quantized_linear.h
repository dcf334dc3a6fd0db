// Products with packed weights for the ops of this library.
#pragma once

#include "cpu/quantized.h"
#include "packed.h"

namespace caw {

// Rows that all tiles go over before the next ones: as many as stay in the second-level cache.
int64_t rows_at_once(int64_t size, bool fast);

// Rows of floats, `apart` from one to the next, as digits; in threads where that pays.
void fill(const float* x, int64_t apart, Activations& to);

// out[m * apart + o] = product of row m with output `first` + o, for o < count; first a multiple of 16.
// sums: room for x.rows * 16 * kMostTiles floats.
void multiply_outputs(const Activations& x, const Packed& w, int64_t first, int64_t count, float* sums, float* out,
    int64_t apart);

// Nanoseconds of one tile.
int64_t packed_tile_cost(const Packed& w, int64_t rows);

}  // namespace caw
