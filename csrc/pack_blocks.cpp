// pack_blocks and unpack_rows on the CPU: a file's blocks into the layout of csrc/blocks.h, and rows of it as floats.
#include <algorithm>
#include <memory>

#include "convert.h"
#include "packed.h"

namespace caw {
namespace {

constexpr int64_t kMostInputs = int64_t(1) << 24, kMostOutputs = int64_t(1) << 31;

// `bits` bits of every quant from bit `place` on, of 8 / bits rows in one byte.
void gather_bits(const uint8_t* rows, int place, int bits, uint8_t* to) {
  std::memset(to, 0, bits * kLine);
  for (int j = 0; j < 8 / bits; ++j) put_bits(rows + j * bits * kLine, place, bits, bits * j, bits * kLine, to);
}

// rows: a unit's quants of 16 outputs, [8 rows][16 outputs][4 inputs] -> its planes.
void write_planes(const uint8_t* rows, int bits, uint8_t* to) {
  if (bits == 8) {
    std::memcpy(to, rows, kUnitRows * kLine);
    return;
  }
  if (bits >= 4) {
    for (int64_t i = 0; i < 4 * kLine; ++i) to[i] = uint8_t((rows[i] & 15) | (rows[i + 4 * kLine] & 15) << 4);
    to += 4 * kLine;
  }
  const int above = bits >= 4 ? 4 : 0, left = bits - above;  // two bits, one, or both
  if (left >= 2) {
    gather_bits(rows, above, 2, to);
    to += 2 * kLine;
  }
  if (left % 2 == 0) return;
  gather_bits(rows, bits - 1, 1, to);
}

// The quant of output o and input k of a unit.
int read_plane(const uint8_t* planes, int bits, int64_t o, int64_t k) {
  const int64_t row = k / 4, byte = 4 * o + k % 4;
  if (bits == 8) return planes[row * kLine + byte];
  int quant = 0, above = 0;
  if (bits >= 4) {
    quant = planes[row % 4 * kLine + byte] >> (row / 4 * 4) & 15;
    planes += 4 * kLine, above = 4;
  }
  if (bits - above >= 2) {
    quant |= (planes[row % 2 * kLine + byte] >> (row / 2 * 2) & 3) << above;
    planes += 2 * kLine, above += 2;
  }
  return bits > above ? quant | (planes[byte] >> row & 1) << above : quant;
}

// One block of inputs of sixteen outputs.
void pack_block(const Form& f, const Block* blocks, uint8_t* planes, uint8_t* scales) {
  uint8_t rows[kUnitRows * kLine];
  for (int64_t unit = 0; unit < f.inputs() / kUnit; ++unit) {
    for (int64_t o = 0; o < kTileOutputs; ++o)
      for (int64_t r = 0; r < kUnitRows; ++r)
        std::memcpy(rows + r * kLine + 4 * o, blocks[o].quants + unit * kUnit + 4 * r, 4);
    write_planes(rows, f.bits, planes + unit * plane_bytes(f.bits));
  }
  const auto half = [&](uint16_t Block::*which) {
    for (int64_t o = 0; o < kTileOutputs; ++o) std::memcpy(scales + 2 * o, &(blocks[o].*which), 2);
    scales += 2 * kTileOutputs;
  };
  half(&Block::d);
  if (f.minimum) half(&Block::m);
  if (!f.super) return;
  const auto whole = [&](int8_t (Block::*which)[16]) {
    for (int64_t g = 0; g < kSuper / f.group; ++g, scales += kTileOutputs)
      for (int64_t o = 0; o < kTileOutputs; ++o) scales[o] = uint8_t((blocks[o].*which)[g]);
  };
  whole(&Block::scales);
  if (f.minimum) whole(&Block::minima);
}

float half_at(const uint8_t* p, int64_t i) { return read(p, i, kFloat16); }

// scale and minimum of output o in one group of inputs, rounded as the dequantized float32 model has them.
std::pair<float, float> scale_and_minimum(const Packed& w, int64_t tile, int64_t o, int64_t input) {
  const Form& f = *w.form;
  const uint8_t* at = w.scales(tile) + input / f.inputs() * scale_bytes(f);
  const float d = half_at(at, o), m = f.minimum ? half_at(at, kTileOutputs + o) : 0.0f;
  if (!f.super) return {d, m};
  const int64_t groups = kSuper / f.group, group = input % kSuper / f.group;
  const int8_t* whole = reinterpret_cast<const int8_t*>(at + 2 * kTileOutputs * (f.minimum ? 2 : 1));
  const float scale = d * float(whole[group * kTileOutputs + o]);
  return {scale, f.minimum ? -(m * float(whole[(groups + group) * kTileOutputs + o])) : 0.0f};
}

void unpack_row(const Packed& w, int64_t row, float* out) {
  const Form& f = *w.form;
  const int64_t tile = row / kTileOutputs, o = row % kTileOutputs;
  for (int64_t k = 0; k < w.size; k += f.group) {
    const auto [scale, minimum] = scale_and_minimum(w, tile, o, k);
    const uint8_t* planes = w.quants(tile) + k / kUnit * plane_bytes(f.bits);
    for (int64_t i = 0; i < f.group; ++i) {
      const int quant = read_plane(planes, f.bits, o, k % kUnit + i);
      out[k + i] = f.minimum ? scale * float(quant) + minimum : scale * float(quant - f.offset());
    }
  }
}

// Blocks that came as a tensor, checked.
struct Blocks {
  const Form* form;
  Tensor bytes;
  int64_t outputs, across, size;  // rows, blocks and inputs of a row
};

Blocks checked(const Tensor& blocks, int64_t type) {
  const Form* form = form_of(type);
  require(form != nullptr, "type must be a block type of ggml, 2, 3, 6, 7, 8 or 10 to 14, got " + std::to_string(type));
  require(blocks.dim() == 2 && blocks.size(0) > 0 && blocks.size(1) > 0 && blocks.size(1) % form->bytes == 0,
      "blocks must have shape [O, N * " + std::to_string(form->bytes) + "], got " + shape_of(blocks));
  require(blocks.scalar_type() == ScalarType::Byte, "blocks must be uint8; pass the bytes of the file");
  const int64_t outputs = blocks.size(0), across = blocks.size(1) / form->bytes, size = across * form->inputs();
  require(size <= kMostInputs && outputs <= kMostOutputs, "blocks must have at most 2^24 inputs and 2^31 outputs, got " +
      shape_of(blocks));
  return {form, dense(blocks), outputs, across, size};
}

void pack(const Blocks& given, int64_t type, bool fast, uint8_t* to) {
  const auto& [form, input, outputs, across, size] = given;
  const uint8_t* from = static_cast<const uint8_t*>(input.const_data_ptr());
  const PackedHeader header{kPackedMark, int32_t(type), fast, outputs, size, {}};
  std::memcpy(to, &header, sizeof(header));
  const int64_t tiles = (outputs + kTileOutputs - 1) / kTileOutputs, bytes = tile_bytes(*form, size);
  // about a nanosecond for four weights
  for_each_part(tiles, kTileOutputs * size / 4, [&](int64_t begin, int64_t end) {
    std::unique_ptr<Block[]> taken(new Block[kTileOutputs]());
    for (int64_t tile = begin; tile < end; ++tile) {
      uint8_t* target = to + kHeaderBytes + tile * bytes;
      uint8_t* scales = target + size / kUnit * plane_bytes(form->bits);
      std::memset(target + bytes - kLine, 0, kLine);
      for (int64_t block = 0; block < across; ++block) {
        for (int64_t o = 0; o < kTileOutputs; ++o) {
          const int64_t row = tile * kTileOutputs + o;
          if (row < outputs)
            read_block(type, from + (row * across + block) * form->bytes, taken[o]);
          else
            taken[o] = Block{};
        }
        pack_block(*form, taken.get(), target + block * (form->inputs() / kUnit) * plane_bytes(form->bits),
            scales + block * scale_bytes(*form));
      }
    }
  });
}

}  // namespace

Tensor pack_blocks(const Tensor& blocks, int64_t type, bool fast) {
  const Blocks given = checked(blocks, type);
  Tensor out = make({packed_bytes(*given.form, given.outputs, given.size)}, ScalarType::Byte);
  pack(given, type, fast, static_cast<uint8_t*>(out.mutable_data_ptr()));
  return out;
}

void pack_blocks_into(const Tensor& blocks, int64_t type, bool fast, const Tensor& out) {
  const Blocks given = checked(blocks, type);
  require(is_packed(out) && out.is_contiguous(), "out must be a contiguous uint8 [N]; got " + shape_of(out));
  require_shape("out", out, {packed_bytes(*given.form, given.outputs, given.size)});
  pack(given, type, fast, static_cast<uint8_t*>(out.mutable_data_ptr()));
}

Tensor unpack_rows(const Tensor& weight, const Tensor& rows, int64_t size) {
  const Packed w = packed("packed", weight);
  require(size == w.size, "size must be that of the packed rows, " + std::to_string(w.size) + ", got " +
      std::to_string(size));
  const std::vector<int64_t> wanted = integers("rows", rows);
  for (const int64_t row : wanted)
    require(row >= 0 && row < w.outputs, "rows must be in [0, " + std::to_string(w.outputs) + "), got " +
        std::to_string(row) + "; check the ids");
  Tensor out = make({int64_t(wanted.size()), w.size}, ScalarType::Float);
  float* to = static_cast<float*>(out.mutable_data_ptr());
  for_each_part(int64_t(wanted.size()), w.size * 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) unpack_row(w, wanted[size_t(i)], to + i * w.size);
  });
  return out;
}

}  // namespace caw

STABLE_TORCH_LIBRARY_IMPL(caw, CPU, m) {
  m.impl("pack_blocks", TORCH_BOX(&caw::pack_blocks));
  m.impl("pack_blocks_into", TORCH_BOX(&caw::pack_blocks_into));
  m.impl("unpack_rows", TORCH_BOX(&caw::unpack_rows));
}
