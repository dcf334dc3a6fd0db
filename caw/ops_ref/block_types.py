"""ggml's quantized block types, by number: what a block holds and how many bytes it takes, in a file and packed."""

from dataclasses import dataclass

TILE_OUTPUTS, UNIT, LINE, HEADER = 16, 32, 64, 64


@dataclass(frozen=True)
class BlockType:
    """inputs, bytes: of a block in a file. bits: of a quant. group: inputs with one scale and, if any, one minimum."""

    name: str
    inputs: int
    bytes: int
    bits: int
    group: int
    minimum: bool


BLOCK_TYPES = {
    2: BlockType("Q4_0", 32, 18, 4, 32, False),
    3: BlockType("Q4_1", 32, 20, 4, 32, True),
    6: BlockType("Q5_0", 32, 22, 5, 32, False),
    7: BlockType("Q5_1", 32, 24, 5, 32, True),
    8: BlockType("Q8_0", 32, 34, 8, 32, False),
    10: BlockType("Q2_K", 256, 84, 2, 16, True),
    11: BlockType("Q3_K", 256, 110, 3, 16, False),
    12: BlockType("Q4_K", 256, 144, 4, 32, True),
    13: BlockType("Q5_K", 256, 176, 5, 32, True),
    14: BlockType("Q6_K", 256, 210, 6, 16, False),
}


def packed_bytes(outputs: int, row_bytes: int, number: int) -> int:
    """Bytes that `pack_blocks` makes of [outputs, row_bytes] of a type; layout: csrc/blocks.h."""
    kind = BLOCK_TYPES[number]
    blocks = row_bytes // kind.bytes
    tables = 2 if kind.minimum else 1  # of scales, and of minima
    whole = kind.inputs // kind.group if kind.inputs > UNIT else 0
    scales = tables * TILE_OUTPUTS * (2 + whole)
    tile = blocks * (kind.inputs // UNIT * kind.bits * LINE + scales)
    return HEADER + -(-outputs // TILE_OUTPUTS) * -(-tile // LINE) * LINE
