// Packed weights that came as a tensor: checked once, then read without further checks.
#pragma once

#include <string>

#include "blocks.h"
#include "tensors.h"

namespace caw {

struct Packed {
  const Form* form = nullptr;
  const uint8_t* tiles = nullptr;
  int64_t type = 0, outputs = 0, size = 0, tile = 0;  // tile: bytes of one
  bool fast = false;
  int64_t count() const { return (outputs + kTileOutputs - 1) / kTileOutputs; }
  const uint8_t* quants(int64_t i) const { return tiles + i * tile; }
  const uint8_t* scales(int64_t i) const { return quants(i) + size / kUnit * plane_bytes(form->bits); }
};

inline bool is_packed(const Tensor& t) { return t.scalar_type() == ScalarType::Byte; }

inline Packed packed(const char* name, const Tensor& t) {
  const auto wrong = [&](const std::string& what) { return std::string(name) + " must be what pack_blocks made, " + what; };
  require(is_packed(t) && t.dim() == 1 && t.is_contiguous(),
      [&] { return wrong("a contiguous uint8 [N]; got " + shape_of(t)); });
  const int64_t bytes = t.size(0);
  require(bytes >= kHeaderBytes,
      [&] { return wrong("got " + std::to_string(bytes) + " bytes; pack the blocks again"); });
  const uint8_t* data = static_cast<const uint8_t*>(t.const_data_ptr());
  PackedHeader header;
  std::memcpy(&header, data, sizeof(header));
  const Form* form = form_of(header.type);
  const bool sound = header.mark == kPackedMark && form && header.outputs > 0 && header.size > 0 &&
      header.size % form->inputs() == 0 && header.size <= bytes * 4 && header.outputs <= bytes &&
      // the quants alone may not exceed the bytes, which also keeps the next product from overflowing
      header.outputs <= bytes * 8 / header.size && packed_bytes(*form, header.outputs, header.size) == bytes;
  require(sound, [&] { return wrong("its header does not fit its bytes; pack the blocks again"); });
  return {form, data + kHeaderBytes, header.type, header.outputs, header.size, tile_bytes(*form, header.size),
      header.fast != 0};
}

}  // namespace caw
