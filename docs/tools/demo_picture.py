"""Draw README's picture of the demo: runs `caw demo` with its defaults and writes what it says as an SVG.

    python docs/tools/demo_picture.py [--out docs/demo.svg]

No font, script or image from elsewhere. Every run of letters is placed by column and given its width, so that it looks
the same whichever monospaced font the reader has.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from caw import KGW, CapacityPolicy, load_model
from caw.cli.demo_command import KEY, PROMPT
from caw.demo.outputs import Demo, DemoText, run_demo
from caw.demo.wording import facts, legend
from caw.io.files import write_text
from caw.io.show import visible
from caw.models.sources import DEMO_MODEL

COLUMNS, LETTER, LINE, MARGIN = 112, 8, 19, 14  # letters a line; pixels of a letter, a line, and around a card
WIDTH = COLUMNS * LETTER + 4 * MARGIN
FACTS = ("p-value", "verdict", "changed tokens", "protected tokens")
SHADED = ("marked", "kept")  # drawn on a background
STYLE = """
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre;fill:#1c1d1f}
.paper{fill:#fff}.card{fill:#f7f8fa;stroke:#d9dce1}.title{font-weight:700}.soft{fill:#63676e}
rect.marked{fill:#9be3a4}rect.kept{fill:#a9d2ff}text.marked{fill:#0b3d16}text.kept{fill:#06305f}
text.green{fill:#147a33}text.protected{fill:#0b63c4}
@media(prefers-color-scheme:dark){text{fill:#e7e9ec}.paper{fill:#131417}.card{fill:#1b1d21;stroke:#33373e}
.soft{fill:#9aa1ab}rect.marked{fill:#1f6b34}rect.kept{fill:#1d4f86}text.marked{fill:#e3ffe9}text.kept{fill:#e4f1ff}
text.green{fill:#63cf82}text.protected{fill:#7ab8ff}}
"""

Letters = list[tuple[str, str]]  # each with the kind of its token


def lines_of(text: DemoText) -> list[Letters]:
    """The text in lines of up to COLUMNS letters, broken at spaces."""
    lines: list[Letters] = [[]]
    letters = [(letter, token.kind) for token in text.tokens for letter in visible(token.text)]
    for is_space, group in groupby(letters, key=lambda pair: pair[0].isspace()):
        word = list(group)
        if is_space and any(letter == "\n" for letter, _ in word):
            lines.append([])
        elif len(lines[-1]) + len(word) <= COLUMNS:
            lines[-1] += word
        elif not is_space:
            lines.append(word)
    return [line for line in lines if line]


def runs(line: Letters) -> Iterator[tuple[int, str, str]]:
    """(column, letters, kind) of neighbours of one kind."""
    column = 0
    for kind, group in groupby(line, key=lambda pair: pair[1]):
        letters = "".join(letter for letter, _ in group)
        yield column, letters, kind
        column += len(letters)


def written(x: float, y: float, letters: str, kind: str) -> str:
    """One run of letters, its own spaces at both ends left out; y is the base line."""
    word = letters.strip()
    if not word:
        return ""
    x += LETTER * (len(letters) - len(letters.lstrip()))
    name = f' class="{kind}"' if kind != "plain" else ""
    return f'<text{name} x="{x:g}" y="{y:g}" textLength="{LETTER * len(word)}">{escape(word, quote=False)}</text>'


def drawn(x: float, y: float, line: Letters) -> str:
    """One line of coloured letters."""
    parts = []
    for column, letters, kind in runs(line):
        left = x + LETTER * column
        if kind in SHADED:
            wide = LETTER * len(letters)
            parts.append(f'<rect class="{kind}" x="{left:g}" y="{y - 14:g}" width="{wide}" height="{LINE}"/>')
        parts.append(written(left, y, letters, kind))
    return "".join(parts)


def numbers(text: DemoText, between: str) -> str:
    """What the detector and the trace say of a text."""
    return between.join(f"{name} {value}" for name, value in facts(text) if name in FACTS)


def card(text: DemoText, top: float, most: int) -> tuple[str, float]:
    """A text with its numbers, `most` lines of it; (drawing, height)."""
    lines, x = lines_of(text), 2 * MARGIN
    cut = len(lines) > most
    height = LINE * (min(len(lines), most) + cut + 2) + 2.5 * MARGIN
    parts = [f'<rect class="card" x="{MARGIN}" y="{top:g}" width="{WIDTH - 2 * MARGIN}" height="{height:g}" rx="6"/>']
    y = top + MARGIN + 8
    parts.append(written(x, y, f"{text.title}: {text.subtitle}", "title"))
    y += MARGIN / 4
    for line in lines[:most]:
        y += LINE
        parts.append(drawn(x, y, line))
    if cut:
        y += LINE
        parts.append(written(x, y, f"... {len(text.tokens)} tokens in all", "soft"))
    parts.append(written(x, y + LINE + MARGIN / 2, numbers(text, " · "), "title"))
    return "".join(parts), height


def picture(demo: Demo, most: int) -> str:
    """The whole SVG."""
    y = MARGIN + 14.0
    parts = [written(MARGIN, y, f"$ caw demo · {demo.prompt}", "soft")]
    y += MARGIN
    for text in demo.texts:
        drawing, height = card(text, y, most)
        parts.append(drawing)
        y += height + MARGIN * 0.75
    for kind, meaning in legend(demo):
        y += LINE
        parts += [drawn(MARGIN, y, [(letter, kind) for letter in kind]), written(MARGIN + 90, y, meaning, "soft")]
    height = y + MARGIN
    says = "; ".join(
        f"{text.title}: " + ", ".join(f"{n} {v}" for n, v in facts(text) if n in FACTS) for text in demo.texts
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img">\n'
        f"<title>caw demo</title><desc>{escape(says, quote=False)}</desc>\n<style>{STYLE}</style>\n"
        f'<rect class="paper" width="{WIDTH}" height="{height:g}" rx="8"/>\n'
        + "\n".join(part for part in parts if part)
        + "\n</svg>\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "demo.svg")
    parser.add_argument("--lines", type=int, default=5, help="lines shown of each text")
    options = parser.parse_args(arguments)
    model, tokenizer = load_model(DEMO_MODEL, dtype="float32")
    demo = run_demo(model, tokenizer, PROMPT, KGW(KEY), CapacityPolicy(DEMO_MODEL))
    write_text(options.out, picture(demo, options.lines))
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
