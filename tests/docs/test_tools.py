"""What the site's build does to docstrings, and what it refuses."""

from __future__ import annotations

from addresses import fetches
from command_line import command_line
from docstring_text import split_names, with_section
from operators import operators

FETCHING = """<link rel="canonical" href="https://a.example/"><link rel="stylesheet" href="https://b.example/x.css">
<script src="//c.example/x.js"></script><img src="figures/d.svg"><a href="https://e.example">a link waits</a>"""


def test_addresses_that_a_page_fetches() -> None:
    assert fetches(FETCHING) == ["https://b.example/x.css", "//c.example/x.js"]
    assert fetches('<img src="d.svg"><link rel="icon" href="assets/x.png">') == []


def test_command_line_has_every_command_and_option() -> None:
    text = command_line()
    for heading in ("caw generate", "caw detect", "caw evaluate run", "caw train-evaluator"):
        assert f"\n## {heading}\n" in text
    assert "| `--input`, `-i` |" in text and "One of `lefthash`, `selfhash`." in text
    row = next(line for line in text.splitlines() if line.startswith("| `--dtype`"))
    assert row.count("|") == 4 and "`bfloat16`" in row  # no bar of a choice splits the row


def test_operators_have_their_schemas() -> None:
    rows = {line.split("`")[1].split("(")[0]: line for line in operators().splitlines()[2:]}
    assert "-> (Tensor, Tensor, Tensor, Tensor)` | yes |" in rows["topk_softmax"]
    assert "Tensor(a!) store" in rows["commit_kv"] and rows["quantized_linear"].endswith("|  |")


def test_types_stand_between_names_and_shapes() -> None:
    assert split_names("    padded int64 [B, W + N], tally int64 [B]: counts.\n    on bool, k: a switch.") == (
        "    padded: int64 [B, W + N], counts.\n    tally: int64 [B], counts.\n    on: bool, a switch.\n"
        "    k: a switch."
    )
    text = "Counts.\n\npadded int64 [B], n: both. keep float32 [B]: kept.\nsum over 3: no name."
    assert with_section(text, ["padded", "n", "keep", "sum"], "Args:") == (
        "Counts.\n\nArgs:\n    padded int64 [B], n: both.\n    keep float32 [B]: kept.\n        sum over 3: no name."
    )


def test_fields_come_under_attributes() -> None:
    text = "A thing.\n\na, b: two, and\ngoing on. c: three.\nd: four; e: not a field.\n\nSaid: no field."
    assert with_section(text, ["a", "b", "c", "d"], "Attributes:") == (
        "A thing.\n\nAttributes:\n    a, b: two, and\n        going on.\n    c: three.\n    d: four; e: not a field."
        "\n\nSaid: no field."
    )
    given = "A thing.\n\nArgs:\n    a: one. b, c [n]: two.\n    d: three. e: no name."
    assert with_section(given, ["a", "b", "c", "d"], "Args:") == given.replace(". b,", ".\n    b,")
    assert with_section(text, ["a"], "Args:") == text, "a sentence with a colon is no field"
