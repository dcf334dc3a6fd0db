// The quantized blocks of .gguf files, and how they are packed for products.
//
// A file keeps an output's weights one after another in blocks of 32 or 256. Products want sixteen outputs side by side,
// so that a vector register holds four inputs of each and no sum over lanes is needed. Packing moves the same quants and
// scales; it rounds nothing. Layout of the packed weights:
//
//     header (64 bytes), then one tile after another, 16 outputs each, the last one filled up with zeros:
//       quants   of each unit of 32 inputs, its bits in planes of 64-byte lines (`plane_lines`)
//       scales   without superblocks: of each unit d [16] and, with minima, m [16], float16
//                with superblocks of 256 inputs: of each d [16] and dmin [16], float16, then of each group scale [16]
//                and minimum [16], int8
//       zeros up to a multiple of 64 bytes
//
// A line is a row of four inputs: byte 4 o + k holds input k of output o. Row r of a unit, 0 to 7, is inputs 4 r to 4 r + 3.
#pragma once

#include <cstdint>
#include <cstring>

namespace caw {

constexpr int64_t kTileOutputs = 16, kUnit = 32, kSuper = 256, kLine = 64, kUnitRows = 8;
constexpr int64_t kHeaderBytes = 64;
constexpr uint64_t kPackedMark = 0x31304b4341504143;  // "CAPACK01"

// Numbers of ggml.
enum BlockType : int32_t {
  kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ2_K = 10, kQ3_K = 11, kQ4_K = 12, kQ5_K = 13, kQ6_K = 14
};

// weight = scale * (quant - offset), or scale * quant + minimum. Quants are unsigned, `bits` of them in the planes.
struct Form {
  int bits;
  bool super;  // blocks of 256 inputs, whose groups have whole-number scales
  int64_t group;  // inputs that share a scale
  bool minimum;
  int64_t bytes;  // of a block in a file
  int offset() const { return 1 << (bits - 1); }  // with a minimum: only where sums are centred
  int64_t inputs() const { return super ? kSuper : kUnit; }  // of a block
};

inline const Form* form_of(int64_t type) {
  static const Form q4_0{4, false, 32, false, 18}, q4_1{4, false, 32, true, 20}, q5_0{5, false, 32, false, 22};
  static const Form q5_1{5, false, 32, true, 24}, q8_0{8, false, 32, false, 34}, q2_k{2, true, 16, true, 84};
  static const Form q3_k{3, true, 16, false, 110}, q4_k{4, true, 32, true, 144}, q5_k{5, true, 32, true, 176};
  static const Form q6_k{6, true, 16, false, 210};
  switch (type) {
    case kQ4_0: return &q4_0;
    case kQ4_1: return &q4_1;
    case kQ5_0: return &q5_0;
    case kQ5_1: return &q5_1;
    case kQ8_0: return &q8_0;
    case kQ2_K: return &q2_k;
    case kQ3_K: return &q3_k;
    case kQ4_K: return &q4_k;
    case kQ5_K: return &q5_k;
    case kQ6_K: return &q6_k;
    default: return nullptr;
  }
}

// Bytes of a unit's planes: four bits a quant take 4 lines, two 2, one 1, eight 8.
constexpr int64_t plane_bytes(int bits) { return bits * kLine; }

// Of one superblock, or of one unit where there are none.
inline int64_t scale_bytes(const Form& f) {
  const int64_t halves = 2 * kTileOutputs * (f.minimum ? 2 : 1);
  return f.super ? halves + kSuper / f.group * kTileOutputs * (f.minimum ? 2 : 1) : halves;
}

inline int64_t tile_bytes(const Form& f, int64_t size) {
  const int64_t bytes = size / kUnit * plane_bytes(f.bits) + size / f.inputs() * scale_bytes(f);
  return (bytes + kLine - 1) / kLine * kLine;
}

struct PackedHeader {
  uint64_t mark;
  int32_t type, fast;  // fast: activations are rounded to 8 bits
  int64_t outputs, size;
  char zeros[32];
};
static_assert(sizeof(PackedHeader) == kHeaderBytes, "the header is a line");

inline int64_t packed_bytes(const Form& f, int64_t outputs, int64_t size) {
  return kHeaderBytes + (outputs + kTileOutputs - 1) / kTileOutputs * tile_bytes(f, size);
}

// One block of a file, taken apart.
struct Block {
  uint8_t quants[kSuper];
  uint16_t d, m;  // float16 bits
  int8_t scales[16], minima[16];
};

inline uint16_t read_half(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }

constexpr uint64_t kEveryByte = 0x0101010101010101;

// `bits` bits from bit `place` on of each of `count` bytes, put into `out` from bit `to` on; count a multiple of 8. Eight
// at once, which compilers make vectors of; bytes shifted by themselves they do not.
inline void put_bits(const uint8_t* p, int place, int bits, int to, int64_t count, uint8_t* out) {
  const uint64_t mask = ((uint64_t(1) << bits) - 1) * kEveryByte;
  for (int64_t i = 0; i < count; i += 8) {
    uint64_t from, into;
    std::memcpy(&from, p + i, 8), std::memcpy(&into, out + i, 8);
    into |= (from >> place & mask) << to;
    std::memcpy(out + i, &into, 8);
  }
}

// Two halves of sixteen bytes, the low bits first; `high` holds the fifth bits or is null.
inline void read_nibbles(const uint8_t* p, const uint8_t* high, uint8_t* out) {
  for (int i = 0; i < 16; ++i) out[i] = p[i] & 15, out[i + 16] = p[i] >> 4;
  for (int i = 0; high && i < 4; ++i) {
    // byte j keeps bit j, and any bit there becomes the top one, which then moves down
    const uint64_t own = high[i] * kEveryByte & 0x8040201008040201, top = (own + 0x7f * kEveryByte) & 0x80 * kEveryByte;
    uint64_t into;
    std::memcpy(&into, out + 8 * i, 8);
    into |= top >> 3;
    std::memcpy(out + 8 * i, &into, 8);
  }
}

// The eight 6-bit scales and minima of Q4_K and Q5_K.
inline void read_scales_and_minima(const uint8_t* p, Block& to) {
  for (int i = 0; i < 4; ++i) {
    to.scales[i] = int8_t(p[i] & 63);
    to.minima[i] = int8_t(p[i + 4] & 63);
    to.scales[i + 4] = int8_t((p[i + 8] & 15) | (p[i] >> 2 & 48));
    to.minima[i + 4] = int8_t(p[i + 8] >> 4 | (p[i + 4] >> 2 & 48));
  }
}

inline void read_pairs(const uint8_t* p, uint8_t* out) {  // two bits each: four times 32 from 32 bytes, twice
  std::memset(out, 0, kSuper);
  for (int n = 0; n < 2; ++n)
    for (int s = 0; s < 4; ++s) put_bits(p + n * 32, 2 * s, 2, 0, 32, out + n * 128 + s * 32);
}

inline void read_q2_k(const uint8_t* p, Block& to) {
  for (int i = 0; i < 16; ++i) to.scales[i] = int8_t(p[i] & 15), to.minima[i] = int8_t(p[i] >> 4);
  read_pairs(p + 16, to.quants);
  to.d = read_half(p + 80), to.m = read_half(p + 82);
}

inline void read_q3_k(const uint8_t* p, Block& to) {
  read_pairs(p + 32, to.quants);
  for (int s = 0; s < 8; ++s) put_bits(p, s, 1, 2, 32, to.quants + 32 * s);
  const uint8_t* s = p + 96;
  for (int i = 0; i < 16; ++i) {
    const int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4, high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
    to.scales[i] = int8_t((low | high << 4) - 32);
  }
  to.d = read_half(p + 108);
}

inline void read_q45_k(const uint8_t* p, bool fifth, Block& to) {
  to.d = read_half(p), to.m = read_half(p + 2);
  read_scales_and_minima(p + 4, to);
  const uint8_t *high = p + 16, *low = fifth ? p + 48 : p + 16;
  for (int n = 0; n < 4; ++n)
    for (int j = 0; j < 32; ++j) {
      to.quants[n * 64 + j] = low[n * 32 + j] & 15;
      to.quants[n * 64 + 32 + j] = low[n * 32 + j] >> 4;
    }
  for (int s = 0; fifth && s < 8; ++s) put_bits(high, s, 1, 4, 32, to.quants + 32 * s);
}

inline void read_q6_k(const uint8_t* p, Block& to) {
  for (int n = 0; n < 2; ++n)
    for (int j = 0; j < 64; ++j) {
      to.quants[n * 128 + j] = p[n * 64 + j] & 15;
      to.quants[n * 128 + 64 + j] = p[n * 64 + j] >> 4;
    }
  const uint8_t* high = p + 128;
  for (int n = 0; n < 2; ++n)
    for (int s = 0; s < 4; ++s) put_bits(high + n * 32, 2 * s, 2, 4, 32, to.quants + n * 128 + s * 32);
  std::memcpy(to.scales, p + 192, 16);
  to.d = read_half(p + 208);
}

inline void read_block(int64_t type, const uint8_t* p, Block& to) {
  to.m = 0;
  switch (type) {
    case kQ4_0: to.d = read_half(p); return read_nibbles(p + 2, nullptr, to.quants);
    case kQ4_1: to.d = read_half(p), to.m = read_half(p + 2); return read_nibbles(p + 4, nullptr, to.quants);
    case kQ5_0: to.d = read_half(p); return read_nibbles(p + 6, p + 2, to.quants);
    case kQ5_1: to.d = read_half(p), to.m = read_half(p + 2); return read_nibbles(p + 8, p + 4, to.quants);
    case kQ8_0:
      to.d = read_half(p);
      for (int i = 0; i < kUnit; ++i) to.quants[i] = p[2 + i] ^ 0x80;
      return;
    case kQ2_K: return read_q2_k(p, to);
    case kQ3_K: return read_q3_k(p, to);
    case kQ4_K: return read_q45_k(p, false, to);
    case kQ5_K: return read_q45_k(p, true, to);
    default: return read_q6_k(p, to);
  }
}

}  // namespace caw
