// AMX tiles in plain C++, to run the kernels that use them on a processor that has only AVX-512: included before their
// source, it takes the place of the intrinsics. It ends the program where tiles' shapes do not go together, as the
// processor does.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

struct Tiles {
  uint16_t bytes[8];  // of a row of each tile
  uint8_t rows[8], at[8][16][64];
};
inline thread_local Tiles tiles;

inline void tile_loadconfig(const void* shape) {
  const uint8_t* from = static_cast<const uint8_t*>(shape);
  if (from[0] != 1) std::abort();  // the palette
  std::memset(&tiles, 0, sizeof(tiles));
  for (int i = 0; i < 16; ++i) {
    uint16_t bytes;
    std::memcpy(&bytes, from + 16 + 2 * i, 2);
    if (bytes > 64 || from[48 + i] > 16 || (i > 7 && (bytes || from[48 + i]))) std::abort();
    if (i < 8) tiles.bytes[i] = bytes, tiles.rows[i] = from[48 + i];
  }
}

inline void tile_loadd(int tile, const void* from, int64_t stride) {
  std::memset(tiles.at[tile], 0, sizeof(tiles.at[tile]));
  for (int r = 0; r < tiles.rows[tile]; ++r)
    std::memcpy(tiles.at[tile][r], static_cast<const char*>(from) + r * stride, tiles.bytes[tile]);
}

inline void tile_stored(int tile, void* to, int64_t stride) {
  for (int r = 0; r < tiles.rows[tile]; ++r)
    std::memcpy(static_cast<char*>(to) + r * stride, tiles.at[tile][r], tiles.bytes[tile]);
}

inline void tile_zero(int tile) { std::memset(tiles.at[tile], 0, sizeof(tiles.at[tile])); }

// sums += rows of a times outputs of b, four signed bytes at a time; a sum that overflows wraps, as it does there
inline void tile_dpbssd(int sums, int a, int b) {
  const Tiles& t = tiles;
  if (t.rows[sums] != t.rows[a] || t.bytes[a] / 4 != t.rows[b] || t.bytes[sums] != t.bytes[b]) std::abort();
  for (int m = 0; m < t.rows[sums]; ++m)
    for (int o = 0; o < t.bytes[sums] / 4; ++o) {
      uint32_t sum;
      std::memcpy(&sum, t.at[sums][m] + 4 * o, 4);
      for (int k = 0; k < t.bytes[a] / 4; ++k)
        for (int j = 0; j < 4; ++j)
          sum += uint32_t(int32_t(int8_t(t.at[a][m][4 * k + j])) * int32_t(int8_t(t.at[b][k][4 * o + j])));
      std::memcpy(tiles.at[sums][m] + 4 * o, &sum, 4);
    }
}

#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#undef _tile_release
#define _tile_loadconfig(shape) tile_loadconfig(shape)
#define _tile_loadd(tile, from, stride) tile_loadd(tile, from, stride)
#define _tile_stored(tile, to, stride) tile_stored(tile, to, stride)
#define _tile_zero(tile) tile_zero(tile)
#define _tile_dpbssd(sums, a, b) tile_dpbssd(sums, a, b)
#define _tile_release() static_cast<void>(0)
