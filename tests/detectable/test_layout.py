"""Layout that says nothing: which texts have one, what stays as it is, and its patches of tokens."""

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from tiny import tiny_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from caw.detectable.layout import layout_patches, layouts
from caw.detectable.splicing import spliced
from caw.detection.ids import to_ids


def others(text: str) -> set[str]:
    return {text[:start] + other + text[end:] for start, end, other in layouts(text)}


@pytest.mark.parametrize(("text", "expected"), [
    ("He ran.\nShe sat.", ["He ran.\n\nShe sat.", "He ran. She sat."]),
    ("He ran!\n\nShe sat?", ["He ran!\nShe sat?"]),
    ("So: \n`Ran`.\nShe", []), ("He `ran`: \nShe sat", ["He `ran`:\n\nShe sat", "He `ran`: She sat"]),
    ("4 feet * 6 feet = 24", ["4 feet × 6 feet = 24"]),
    (' “He ran.”\n"She" sat', [' “He ran.”\n\n"She" sat', ' “He ran.” "She" sat']),
    ("It was 1904\n\n$5 is it.", ["It was 1904\n$5 is it."]), ("Été.\n日本。", ["Été.\n\n日本。", "Été. 日本。"]),
    ("- a\n\nHe ran.\nIt sat.\n\n# b", ["- a\n\nHe ran.\n\nIt sat.\n\n# b", "- a\n\nHe ran. It sat.\n\n# b"]),
    ("so 48 * 2 = 96.", ["so 48 × 2 = 96.", "so 48×2 = 96.", "so 48×2=96."]),
    ("6 x 7 = 42 m", ["6 × 7 = 42 m", "6×7 = 42 m", "6×7=42 m"]),
    ("10 x 10 tiles", ["10 × 10 tiles", "10×10 tiles"]), ("$5.50 - $1,000 = -1", []),
    ("($5 + 3%) / 2 = €4", ["($5+3%)/2 = €4", "($5+3%)/2=€4"]),
    ("- 1 - 2 = 3 = 4", ["- 1-2 = 3 = 4", "- 1-2=3=4"]),
    ("**7 ÷ 2 = 3.5**", ["**7÷2 = 3.5**", "**7÷2=3.5**"]),
    ("`a * b` is 2 + 1 = 3", ["`a * b` is 2+1 = 3", "`a * b` is 2+1=3"]),
    ("x = 3 * 4 = 12", ["x = 3 × 4 = 12", "x = 3×4 = 12", "x = 3×4=12"]),
    ("* 1 + 1 = 2 - y is 3 = 3", ["* 1 + 1 = 2 - y is 3=3"]),
    ("It costs $5. Then 2 + 1 = 3 and \\(x\\)", [
        f"It costs $5. Then {each} and \\(x\\)" for each in ("2+1 = 3", "2+1=3")
    ]),
])  # fmt: skip
def test_what_may_stand_there_instead(text: str, expected: list[str]) -> None:
    assert others(text) == set(expected)


@pytest.mark.parametrize("text", [
    "", "\n", "\n\n\n", " ", "A", ".\n.", "He ran.", "He ran.\n", "\nHe ran.", "He ran.\n\n", "He ran.\n\n\nShe sat.",
    "The sky is wide,\nThe sea is deep.\nI count my sheep", "Roses are red\n\nViolets are blue", "Title\n\nHe ran.",
    "- He ran.\n- She sat.", "* He ran.\n* She sat.", "1. He ran.\n2. She sat.", "a) One.\n(2) Two.", "• One.\n• Two.",
    "He ran.\n  She sat.", "He ran.  \nShe sat.", "He ran.\r\nShe sat.", "> He ran.\n> She sat.", "<p>Hi.\nYes.",
    "# 5\nHe ran.", "**Bold.**\nHe ran.", "Date: 5/12\nRoom: 7", "Q: Is it 5?\nA: It is 6.",
    "|a|b|\n|-|-|\n|1 + 1 = 2|5|", "| a |\n | 3 * 4 = 12 |", "~~~\nHe ran.\n\nShe sat.\n~~~",
    "```\nHe ran.\n\nShe sat. 3 * 4 = 12\n```", "```py\nx = 3 * 4 = 12", "`3 * 4 = 12`",
    "\tx = 3 * 4 = 12", "    y = 1 + 1 = 2", "return 3 * 4", "print(3 * 4 = 12)", "x += 1 + 1 = 2", "return n * 2",
    "x = 3 + 4", "2020 - 2021", "5 - 3",
    "$3 \\times 4 = 12 + 1 = 13$", "\\[ 3 * 4 = 12 \\]", "\\( 1 + 1 = 2 \\)", "$$ 1 + 1 = 2 $$", "\\[ 1 + 1 = 2",
    "a3 * 4 = 12", "3 * 4 = 12a", "3*4=12", "3  * 4", "v1.2 + 3 = 4", "3 * x = 12", "3 + 4 = 7 * y", "x - 3 = 4",
])  # fmt: skip
def test_what_stays_as_it_is(text: str) -> None:
    assert not others(text)


def pieces() -> Any:
    """SentencePiece's way: spaces begin words, the first of which is lost; other characters are bytes."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"Hernashtim.05+=*×"]
    inner = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [], byte_fallback=True, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    ends = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(ends)
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")


def coder(tokenizer: Any) -> tuple[Callable[[str], list[int]], Callable[[list[int]], str]]:
    def text_of(tokens: list[int]) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    return lambda text: to_ids([text], tokenizer)[0].tolist(), text_of


PARTS = [
    "He ran.",
    "It is 5.",
    "3 * 5 = 15",
    "\n",
    "\n\n",
    " ",
    "\U0001f642",
    "é",
    "\U0001f468‍\U0001f469 ",
    "$5 + 3% = 8",
]


@pytest.mark.parametrize("tokenizer", [tiny_tokenizer(), pieces()], ids=["bytes", "pieces"])
def test_each_patch_makes_one_of_the_layouts(tokenizer: Any) -> None:
    """Also of tokens that no encoder writes, and that begin or end inside a character."""
    ids_of, text_of = coder(tokenizer)
    draw, count = random.Random(1), 0
    for number in range(400):
        written = "".join(draw.choices(PARTS, k=draw.randint(1, 25)))
        tokens = ids_of(written)
        if number % 3 == 1:
            tokens = list(itertools.chain.from_iterable(map(ids_of, written)))
        if number % 3 == 2:
            tokens = tokens[draw.randint(0, 2) : len(tokens) - draw.randint(0, 2)]
        text, since = text_of(tokens), draw.choice([0, 3, 9])
        patches = layout_patches(tokens, since, text_of, ids_of)
        for patch in patches:
            assert text_of(spliced(tokens, [patch])) in others(text)
            assert since <= patch.start < patch.end <= len(tokens) and patch.tokens
        if number % 3 == 0 and not since:
            count += len(patches)
    assert count > 30 and not layout_patches([], 0, text_of, ids_of)


def test_patches_that_do_not_meet_go_together() -> None:
    ids_of, text_of = coder(tiny_tokenizer())
    tokens = ids_of("It is 5.\nHe ran. 3 * 5 = 15\n\nShe sat \U0001f642 up.\n\nHe ran.")
    patches = layout_patches(tokens, 0, text_of, ids_of)
    texts = {text_of(spliced(tokens, some)) for some in itertools.combinations(patches, 4) if not meet(some)}
    assert "It is 5. He ran. 3×5=15\nShe sat \U0001f642 up.\nHe ran." in texts and len(texts) == 2 * 3
    assert not any(meet(some) is False for some in itertools.combinations(patches, 5)), "one of each place"


def meet(patches: Any) -> bool:
    return any(one.meets(other) for one, other in itertools.combinations(patches, 2))


@pytest.mark.parametrize("part", ["so 3 * 5 = 15 and ", "It is 5.\n", "1,", "\\[", "a `b` 1 + 1 = 2,", "$$ ", "((1 + "])
def test_the_time_it_takes_is_linear(part: str) -> None:
    ids_of, text_of = coder(tiny_tokenizer())
    took, calls = [], []
    for length in (5_000, 50_000):
        tokens, seen = ids_of(part * (length // len(part))), [0]

        def counted(some: list[int], seen: list[int] = seen) -> str:
            seen[0] += len(some)
            return text_of(some)

        start = time.process_time()
        layout_patches(tokens, 0, counted, ids_of)
        took.append(time.process_time() - start)
        calls.append(seen[0])
    assert calls[1] < 11 * calls[0], "tokens that are decoded"
    assert took[1] < 40 * took[0] + 0.1
