"""A WordNet of a few synsets, in the files' own format, offsets included."""

from pathlib import Path

# part of speech -> synsets (the order within a lemma's senses is that of the list); lemmas as WordNet writes them
SYNSETS = {
    "noun": [("apple", "pome", "orchard_apple_tree"), ("dog", "hound", "Canis"), ("total", "sum"), ("lone",),
             ("box", "crate"), ("child", "kid")],
    "verb": [("buy", "purchase"), ("buy", "bribe"), ("eat", "consume"), ("stop", "halt"), ("sell", "vend"),
             ("total", "add")],
    "adj": [("big", "large(p)")],
    "adv": [("quickly", "fast")],
}  # fmt: skip
EXCEPTIONS = {
    "noun": "children child\n",
    "verb": "bought buy\nate eat\neaten eat\nsold sell\nstopped stop\nstopping stop\n",
}
LETTERS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}


def write_wordnet(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, synsets in SYNSETS.items():
        data, senses = "  1 a licence\n  2 of two lines\n", dict[str, list[int]]()
        for words in synsets:
            offset = len(data)
            for word in words:
                senses.setdefault(word.split("(")[0].lower(), []).append(offset)
            listed = " ".join(f"{word} 0" for word in words)
            data += f"{offset:08d} 05 {LETTERS[part]} {len(words):02x} {listed} 001 @ 00001740 n 0000 | a gloss  \n"
        index = "  1 a licence\n"
        for lemma in sorted(senses):
            offsets = senses[lemma]
            numbers = " ".join(f"{offset:08d}" for offset in offsets)
            index += f"{lemma} {LETTERS[part]} {len(offsets)} 1 @ {len(offsets)} 0 {numbers}  \n"
        (folder / f"data.{part}").write_text(data)
        (folder / f"index.{part}").write_text(index)
        if part in EXCEPTIONS:
            (folder / f"{part}.exc").write_text(EXCEPTIONS[part])
    return folder
