"""Where drafts are carried, and what is said where they are not."""

from typing import Any

import pytest
from decoding.architectures import CONFIGS, build, from_config, prompt, tokenizer

import caw
from caw import ops
from caw.decoding.drafts.ngrams import NgramDrafter
from caw.decoding.plan_defaults import NEVER, ROUNDING, exact_rows

pytestmark = pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")


def counts(model: Any, **options: Any) -> Any:
    """What drafts did for a text whose tokens the prompt has."""
    ids = prompt(100)
    out = caw.generate(model, tokenizer(), [ids], max_new_tokens=6, progress=False, **options)
    return out.trace[0].drafts


def test_drafts_are_carried_by_default() -> None:
    found = counts(build("llama"))
    assert found.why_not == "" and found.passes and found.rows >= found.passes


@pytest.mark.parametrize("speculate", [3, NgramDrafter()])
def test_and_wherever_they_are_asked_for(speculate: Any) -> None:
    found = counts(build("gpt2"), speculate=speculate)
    assert found.why_not == "" and found.drafted
    if speculate == 3:
        assert found.drafted <= 3 * found.passes


@pytest.mark.parametrize("name, options, why", [
    ("llama", {"speculate": None}, NEVER),
    ("gpt2", {}, ROUNDING),
    ("llama", {"branching": "sequential"}, "branching='sequential'"),
    ("llama", {"backend": "reference"}, "compiled"),
    ("llama", {"prefill_attention": "eager"}, "compiled"),
])  # fmt: skip
def test_the_trace_says_why_there_are_none(name: str, options: dict[str, Any], why: str) -> None:
    found = counts(build(name), **options)
    assert why in found.why_not and not found.passes
    if options and "speculate" not in options:
        with pytest.raises(ValueError, match=r"^speculate=2 needs .* found .*; leave speculate out$"):
            counts(build(name), speculate=2, **options)


@pytest.mark.parametrize("speculate, kind", [("much", ValueError), (0, ValueError), (65, ValueError), (1.5, TypeError),
                                             (True, TypeError), ([3], TypeError)])  # fmt: skip
def test_what_is_no_source_of_drafts(speculate: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^speculate must be"):
        counts(build("llama"), speculate=speculate)


def test_exact_rows() -> None:
    fused = ("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma3", "phi3", "granite")
    assert all(exact_rows(build(name)) for name in fused)
    assert not any(exact_rows(build(name)) for name in ("gpt2", "mixtral", "starcoder2"))
    kind, settings = CONFIGS["gemma2"]
    for vocabulary, exact in ((131, False), (160, True)):  # torch's tanh, which caps its logits, goes by 32 at a time
        assert exact_rows(from_config(kind, {**settings, "vocab_size": vocabulary})) == exact
