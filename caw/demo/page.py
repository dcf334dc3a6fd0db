"""The demo as a self-contained HTML page, without scripts or links."""

from html import escape

from caw.demo.outputs import Demo, DemoText, DemoToken
from caw.demo.wording import INTRODUCTION, P_VALUE, facts, legend, settings
from caw.io.show import visible

STYLE = """
:root { color-scheme: light dark; --ink: #1c1d1f; --soft: #63676e; --line: #d9dce1; --paper: #fff; --card: #f7f8fa;
  --marked: #9be3a4; --marked-ink: #0b3d16; --green: #147a33; --protected: #0b63c4;
  --kept: #a9d2ff; --kept-ink: #06305f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7e9ec; --soft: #9aa1ab; --line: #33373e; --paper: #131417;
  --card: #1b1d21; --marked: #1f6b34; --marked-ink: #e3ffe9; --green: #63cf82; --protected: #7ab8ff; --kept: #1d4f86;
  --kept-ink: #e4f1ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 90rem; padding: 2rem 1.5rem 3rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; } h2 { font-size: 1.05rem; margin: 0; }
p { margin: .4rem 0; max-width: 60rem; } .soft { color: var(--soft); }
.texts { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; margin: 1.5rem 0; }
article { border: 1px solid var(--line); border-radius: .5rem; background: var(--card); padding: 1rem; display: flex;
  flex-direction: column; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; margin: .8rem 0; flex: 1; }
dl { display: grid; grid-template-columns: auto 1fr; gap: .1rem 1rem; margin: 0; border-top: 1px solid var(--line);
  padding-top: .7rem; font-size: .9rem; font-variant-numeric: tabular-nums; }
dt { color: var(--soft); } dd { margin: 0; } dd.key { font-weight: 650; }
.marked { background: var(--marked); color: var(--marked-ink); border-radius: .2rem; font-weight: 600; }
.kept { background: var(--kept); color: var(--kept-ink); border-radius: .2rem; font-weight: 600; }
.protected { color: var(--protected); }
.green { color: var(--green); }
.legend { display: grid; grid-template-columns: auto 1fr; gap: .3rem 1rem; align-items: baseline; }
.legend span { padding: 0 .25rem; justify-self: start; }
"""


def page(demo: Demo) -> str:
    """Return the whole page. Everything from a model or a caller is escaped."""
    articles = "\n".join(_article(text) for text in demo.texts)
    meanings = "\n".join(
        f'<span class="{kind}">{kind}</span><div>{escape(meaning)}</div>' for kind, meaning in legend(demo)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>caw demo: one prompt, four texts</title>
<style>{STYLE}</style>
</head>
<body>
<h1>One prompt, four texts</h1>
<p class="soft">{escape(INTRODUCTION)} {escape(P_VALUE)}</p>
<p><strong>Prompt</strong> {escape(visible(demo.prompt))}</p>
<p class="soft">{escape(settings(demo))}</p>
<div class="texts">
{articles}
</div>
<div class="legend">
{meanings}
</div>
<p class="soft">Rest the pointer on a token to see its predicted importance and what it would have been otherwise.</p>
</body>
</html>
"""


def _article(text: DemoText) -> str:
    rows = "".join(
        f'<dt>{escape(name)}</dt><dd class="{"key" if name in ("p-value", "verdict") else ""}">{escape(value)}</dd>'
        for name, value in facts(text)
    )
    body = "".join(_span(token) for token in text.tokens)
    return (
        f'<article><h2>{escape(text.title)} <span class="soft">{escape(text.subtitle)}</span></h2>'
        f'<div class="text">{body}</div><dl>{rows}</dl></article>'
    )


def _span(token: DemoToken) -> str:
    if token.kind == "plain" and not token.note:
        return escape(visible(token.text))
    text = visible(token.text)
    word = text.lstrip()
    gap = text[: len(text) - len(word)]  # outside the span, so that the colour does not cover the gap
    return f'{escape(gap)}<span class="{token.kind}" title="{escape(token.note)}">{escape(word)}</span>'
