"""prefix_attention and layers of prompts: as their references, and bit for bit what steps would have computed."""

from typing import Any

import pytest
import torch
from pairwise import pairwise

from caw import ops
from caw.ops_ref.prefill_layer_ref import prefill_layer_ref, prefix_attention_ref
from caw.testing import assert_close
from caw.triton_kernels.decoder_layer_ref import LLAMA
from tests.csrc.test_decoder_layer import ROWS, SEQUENCES, arguments, layer

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
HEADS, KV_HEADS, DIM = 6, 2, 24
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "window": {"window": 70}, "softcap": {"softcap": 3.0}, "sinks": {"sinks": torch.randn(HEADS)},
}  # fmt: skip


def tokens(count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(1, heads, count, DIM).to(dtype) for heads in (HEADS, KV_HEADS, KV_HEADS)]


def one(x: torch.Tensor, at: int) -> torch.Tensor:
    return x[:, :, at : at + 1]


@pytest.mark.parametrize(
    "committed, option, dtype", pairwise([0, 1, 63, 507, 1019], OPTIONS, [torch.float32, torch.bfloat16])
)
def test_behind_drafts_as_behind_commits(committed: int, option: str, dtype: torch.dtype) -> None:
    drafts = 9  # over the ends of a tile of 64 and of spans of 512
    q, k, v = tokens(committed + drafts, dtype)
    places = torch.arange(committed, committed + drafts)
    rows = [x[0].transpose(0, 1)[places][:, :, None] for x in (q, k, v)]
    cache = torch.zeros(2, 3, KV_HEADS, 1100, DIM, dtype=dtype)
    cache[0, 1, :, : committed + drafts], cache[1, 1, :, : committed + drafts] = k[0], v[0]
    found = ops.prefix_attention(
        rows[0], cache[0], cache[1], rows[1], rows[2], places, torch.ones_like(places), 0.2, **OPTIONS[option]
    )
    for i, at in enumerate(places.tolist()):
        own = [one(x, at) for x in (q, k, v)]
        prefix = cache[0, 1:2, :, :1090], cache[1, 1:2, :, :1090]
        step = ops.sibling_attention(own[0], *prefix, own[1], own[2], torch.tensor([at]), 0.2, **OPTIONS[option])
        assert torch.equal(found[i], step[0]), at
        siblings = [torch.cat([x, torch.randn_like(x)], dim=2) for x in own]
        beside = ops.sibling_attention(
            siblings[0], *prefix, siblings[1], siblings[2], torch.tensor([at]), 0.2, **OPTIONS[option]
        )
        assert torch.equal(beside[:, :, :1], step), "a sibling changes nothing"


@DTYPES
@pytest.mark.parametrize("option", ["plain", "window"])
def test_attention_of_any_number_of_rows(option: str, dtype: torch.dtype) -> None:
    cache = torch.randn(2, 8, KV_HEADS, 530, DIM).to(dtype)
    own = [torch.randn(96, heads, 1, DIM).to(dtype) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    at, chain = torch.full((96,), 5), torch.arange(434, 530)

    def drafts(part: slice) -> torch.Tensor:
        given = (own[0][part], cache[0], cache[1], own[1][part], own[2][part], chain[part], at[part])
        return ops.prefix_attention(*given, 0.2, **OPTIONS[option])

    together = drafts(slice(0, 96))
    for rows in ROWS:
        for part in (slice(0, rows), slice(96 - rows, 96)):
            assert torch.equal(drafts(part), together[part]), rows


@pytest.mark.parametrize(
    "candidates, option, dtype", pairwise(SEQUENCES, ["plain", "window"], [torch.float32, torch.bfloat16])
)
def test_attention_of_any_number_of_candidates(candidates: int, option: str, dtype: torch.dtype) -> None:
    """96 rows in all, side by side and packed, some of them behind more than 512 tokens."""
    batch = 96 // candidates
    cache, lengths = torch.randn(2, batch, KV_HEADS, 530, DIM).to(dtype), (torch.arange(batch) + 1) * 523 % 531
    own = [torch.randn(batch, heads, candidates, DIM).to(dtype) for heads in (HEADS, KV_HEADS, KV_HEADS)]

    def siblings(part: slice) -> torch.Tensor:
        given = [x[part] for x in (own[0], cache[0], cache[1], own[1], own[2], lengths)]
        return ops.sibling_attention(*given, 0.2, **OPTIONS[option])

    def packed(part: slice) -> torch.Tensor:
        flat = [x[part].transpose(1, 2).flatten(0, 1)[:, :, None] for x in own]
        rows = torch.arange(batch)[part].repeat_interleave(candidates)
        given = (flat[0], cache[0], cache[1], flat[1], flat[2], lengths, rows)
        found = ops.sibling_attention_packed(*given, 0.2, **OPTIONS[option])
        return found[:, :, 0].unflatten(0, (-1, candidates)).transpose(1, 2)

    for rows_of in (siblings, packed):
        together = rows_of(slice(0, batch))
        for count in SEQUENCES[candidates]:
            for part in (slice(0, count), slice(batch - count, batch)):
                assert torch.equal(rows_of(part), together[part]), count


@pytest.mark.parametrize("option", OPTIONS)
def test_attention_equals_its_reference(option: str) -> None:
    cache, lengths = torch.randn(2, 3, KV_HEADS, 90, DIM), torch.tensor([90, 0, 7, 64, 65])
    own = [torch.randn(5, heads, 1, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    given = (own[0], cache[0], cache[1], own[1], own[2], lengths, torch.tensor([2, 0, 1, 0, 2]), 0.2)
    assert_close(
        ops.prefix_attention(*given, **OPTIONS[option]), prefix_attention_ref(*given, **OPTIONS[option]),
        "attention/float32",
    )  # fmt: skip


def prompt(count: int, rows: int = 1, **options: Any) -> dict[str, Any]:
    given = arguments(batch=rows, candidates=count, size=count + 3, **options)
    for name in ("k_scratch", "v_scratch", "slot", "lengths"):
        del given[name]
    given["k_cache"][:], given["v_cache"][:] = torch.nan, torch.nan
    places = torch.arange(rows).repeat_interleave(count), torch.arange(count).repeat(rows)
    return {**given, "rows": places[0], "positions": places[1]}


def prefill(
    hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
    rows: torch.Tensor, positions: torch.Tensor, weights: list[Any], biases: list[Any], eps: float, scale: float,
    window: int | None = None, places: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    store = torch.stack([k_cache, v_cache])[None]
    places = positions if places is None else places
    given = 0, positions, weights, biases, eps, scale, [window or 0], rows, places
    out = ops.decoder_stack(hidden, cos, sin, store, torch.zeros_like(store), *given)
    k_cache.copy_(store[0, 0])
    v_cache.copy_(store[0, 1])
    return out


@pytest.mark.parametrize("options", [{}, {"head_norms": True, "biases": True}, {"window": 4}], ids=str)
def test_layer_equals_its_reference(options: dict[str, Any]) -> None:
    given = prompt(11, rows=2, **options)
    wide = {
        name: value.double().nan_to_num() if isinstance(value, torch.Tensor) and value.is_floating_point()
        else [None if x is None else x.double() for x in value] if isinstance(value, list) else value
        for name, value in given.items()
    }  # fmt: skip
    found = prefill(**given)
    window = wide.pop("window", None)
    expected = prefill_layer_ref(
        **wide, places=wide["positions"], window=window, family=LLAMA, softcap=None, multiplier=1.0
    )
    assert_close(found, expected.float(), "float32")
    for name in ("k_cache", "v_cache"):
        assert_close(given[name][:, :, :11], wide[name][:, :, :11].float(), "float32")
        assert given[name][:, :, 11:].isnan().all(), "nothing beyond the tokens is written"


@DTYPES
def test_a_prompt_in_pieces_alone_or_decoded_is_the_same(dtype: torch.dtype) -> None:
    given = prompt(70, rows=3, dtype=dtype, head_norms=True, width=40, wide=72)
    whole = prefill(**given)
    again = {**given, "k_cache": torch.zeros_like(given["k_cache"]), "v_cache": torch.zeros_like(given["v_cache"])}
    for begin, end in ((0, 17), (17, 18), (18, 67)):
        piece = {name: again[name][2:, begin:end] for name in ("hidden", "cos", "sin")}
        positions = torch.arange(begin, end)
        found = prefill(**{**again, **piece, "rows": torch.full_like(positions, 1), "positions": positions})
        assert torch.equal(found[0], whole[2, begin:end])
    for name in ("k_cache", "v_cache"):
        assert torch.equal(again[name][1, :, :67], given[name][2, :, :67])
    for at in range(67, 70):
        scratch = torch.zeros(2, 1, 2, *given["k_cache"].shape[1::2], dtype=dtype)
        both = {name: torch.cat([again[name][2:, at : at + 1]] * 2, dim=1) for name in ("hidden", "cos", "sin")}
        both["hidden"][:, 1] += 1  # a sibling
        cache = {name: again[name][1:2] for name in ("k_cache", "v_cache")}
        step = {name: given[name] for name in ("weights", "biases", "eps", "scale")}
        found = layer(
            **both, **cache, k_scratch=scratch[0], v_scratch=scratch[1], slot=0, lengths=torch.tensor([at]), **step
        )
        assert torch.equal(found[0, 0], whole[2, at])
        for kept, name in zip(scratch, cache, strict=True):
            again[name][1, :, at] = kept[0, 0]


@DTYPES
@pytest.mark.parametrize("options", [{}, {"window": 20}], ids=str)
def test_any_number_of_rows_behind_one_another(options: dict[str, Any], dtype: torch.dtype) -> None:
    given = prompt(97, dtype=dtype, head_norms=True, width=40, wide=72, **options)
    whole = prefill(**given)
    written = [given[name].clone() for name in ("k_cache", "v_cache")]
    for count in ROWS:
        last = {name: given[name][:, -count:] for name in ("hidden", "cos", "sin")}
        last |= {name: given[name][-count:] for name in ("rows", "positions")}
        for name in ("k_cache", "v_cache"):
            given[name][:, :, 97 - count :] = torch.nan
        assert torch.equal(prefill(**{**given, **last}), whole[:, -count:]), count
        for name, before in zip(("k_cache", "v_cache"), written, strict=True):
            torch.testing.assert_close(given[name], before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name,value", [
    ("rows", torch.tensor([0, 2])), ("rows", torch.tensor([0])), ("places", torch.tensor([0, 5])),
    ("places", torch.tensor([0])),
])  # fmt: skip
def test_bad_input_names_the_argument(name: str, value: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match=f"^(rows and )?{name} (and places )?must"):
        prefill(**{**prompt(2), name: value})


@DTYPES
def test_a_candidate_beside_the_drafts_is_the_same_as_without_them(dtype: torch.dtype) -> None:
    """Positions 5, 5, 6: a candidate that the draft follows, one beside it that is kept behind, and the draft."""
    given = prompt(8, dtype=dtype, head_norms=True)
    prefill(**given)
    own = {name: given[name][:, [5, 4, 6]] for name in ("hidden", "cos", "sin")}
    own["cos"][:, 1], own["sin"][:, 1] = own["cos"][:, 0], own["sin"][:, 0]
    rows, positions, places = torch.zeros(3, dtype=torch.int64), torch.tensor([5, 5, 6]), torch.tensor([5, 7, 6])
    drafted = {**given, **own, "rows": rows, "positions": positions}
    cache = {name: given[name].clone() for name in ("k_cache", "v_cache")}
    found = prefill(**{**drafted, **cache}, places=places)
    alone = {name: own[name][:, 1:2] for name in own}
    moved = {name: given[name].clone() for name in cache}
    one = prefill(**{**given, **alone, **moved, "rows": rows[:1], "positions": positions[1:2]})
    assert torch.equal(found[:, 1:2], one)
    for name in cache:
        assert torch.equal(cache[name][:, :, 7], moved[name][:, :, 5])
        assert torch.equal(cache[name][:, :, :7], given[name][:, :, :7]), "the chain is where it was"
