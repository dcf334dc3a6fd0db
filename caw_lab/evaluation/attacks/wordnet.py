"""WordNet 3.0 from its database files (data.*, index.*, *.exc): synonyms of a word, in its own inflection."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

PARTS = ("noun", "verb", "adj", "adv")
VARIABLE = "CAW_WORDNET"
FOLDERS = (
    "/usr/share/wordnet",
    "/usr/local/share/wordnet",
    "/usr/local/WordNet-3.0/dict",
    "/opt/homebrew/opt/wordnet/dict",
    "~/nltk_data/corpora/wordnet",
    "/usr/share/nltk_data/corpora/wordnet",
    "/usr/local/share/nltk_data/corpora/wordnet",
)
# (ending, what the base form has instead, which inflection it is), as in WordNet's own morphy
RULES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "noun": (("ses", "s", "s"), ("xes", "x", "s"), ("zes", "z", "s"), ("ches", "ch", "s"), ("shes", "sh", "s"),
             ("ies", "y", "s"), ("s", "", "s")),
    "verb": (("ies", "y", "s"), ("es", "e", "s"), ("es", "", "s"), ("s", "", "s"), ("ed", "e", "ed"), ("ed", "", "ed"),
             ("ing", "e", "ing"), ("ing", "", "ing")),
}  # fmt: skip
SINGLE = re.compile(r"[a-z]+(-[a-z]+)*")  # no phrases, names or abbreviations


def find_folder(folder: str | Path | None = None) -> Path:
    """Return the database's folder: given, of CAW_WORDNET, WNSEARCHDIR, NLTK_DATA, or usual. FileNotFoundError."""
    nltk = (Path(p) / "corpora" / "wordnet" for p in os.environ.get("NLTK_DATA", "").split(os.pathsep) if p)
    named = folder or os.environ.get(VARIABLE) or os.environ.get("WNSEARCHDIR")
    places = [Path(named)] if named else [*nltk, *(Path(p).expanduser() for p in FOLDERS)]
    for place in places:
        if all((place / f"{kind}.{part}").is_file() for part in PARTS for kind in ("data", "index")):
            return place
    where = f"in {named}" if named else "in the usual folders"
    raise FileNotFoundError(
        f"synonyms need WordNet's files data.noun, index.noun and so on, found none {where}; run `apt-get install "
        f"wordnet-base` (or nltk.download('wordnet')), or name their folder with {VARIABLE}"
    )


@dataclass(frozen=True)
class WordNet:
    """The database in memory (about a third of a second and 40 MB). `open` finds and reads it.

    All by part of speech. index: lemma -> offsets. data: a file's bytes. bases: irregular inflected form -> base forms;
    forms: base form -> irregular inflected forms.
    """

    folder: str
    index: dict[str, dict[str, tuple[int, ...]]] = field(repr=False)
    data: dict[str, bytes] = field(repr=False)
    bases: dict[str, dict[str, tuple[str, ...]]] = field(repr=False)
    forms: dict[str, dict[str, tuple[str, ...]]] = field(repr=False)

    @classmethod
    def open(cls, folder: str | Path | None = None) -> WordNet:
        """Read the database; see `find_folder`. Raises FileNotFoundError, and ValueError for files of another kind."""
        place = find_folder(folder)
        bases = {part: _read_exceptions(place / f"{part}.exc") for part in PARTS}
        forms: dict[str, dict[str, tuple[str, ...]]] = {part: {} for part in PARTS}
        for part, table in bases.items():
            for form, lemmas in table.items():
                for lemma in lemmas:
                    forms[part][lemma] = (*forms[part].get(lemma, ()), form)
        index = {part: _read_index(place / f"index.{part}") for part in PARTS}
        return cls(str(place), index, {p: (place / f"data.{p}").read_bytes() for p in PARTS}, bases, forms)

    @property
    def sha256(self) -> str:
        """SHA-256 of the data files, which tells the edition."""
        return hashlib.sha256(b"".join(self.data[part] for part in PARTS)).hexdigest()

    def __hash__(self) -> int:
        return id(self)

    @lru_cache(maxsize=50_000)  # noqa: B019  a run holds one database
    def synonyms(self, word: str) -> tuple[str, ...]:
        """Return single other words of a sense of `word`, commonest first, inflected like it, in lower case."""
        word = word.lower()
        found: dict[str, None] = {}
        for part, lemma, form in self._readings(word):
            for offset in self.index[part][lemma]:
                for other in self._synset(part, offset):
                    if other != lemma and SINGLE.fullmatch(other):
                        found[self._inflected(part, other, form)] = None
        return tuple(w for w in found if w != word)

    def _readings(self, word: str) -> list[tuple[str, str, str]]:
        """Return (part of speech, lemma, inflection) of the word's readings; inflection "" is the lemma itself."""
        readings = [(part, word, "") for part in PARTS if word in self.index[part]]
        for part, rules in RULES.items():
            for lemma in self.bases[part].get(word, ()):
                usual = "ed" if part == "verb" else "s"
                form = next((f for f in ("ing", "ed", "s") if part == "verb" and word.endswith(f)), usual)
                readings.append((part, lemma, form))
            for ending, instead, form in rules:
                lemma = word[: -len(ending)] + instead
                if word.endswith(ending) and len(lemma) > 2 and word not in self.bases[part]:
                    readings.append((part, lemma, form))
        return [r for r in dict.fromkeys(readings) if r[1] in self.index[r[0]]]

    def _synset(self, part: str, offset: int) -> list[str]:
        """Return the words of a synset; names keep their capitals."""
        line = self.data[part][offset : self.data[part].index(b"\n", offset)].decode("ascii", "replace").split()
        if len(line) < 6 or line[0] != f"{offset:08d}":
            raise ValueError(f"expected a synset at byte {offset} of data.{part} in {self.folder}; install it again")
        return [line[4 + 2 * i].split("(")[0] for i in range(int(line[3], 16))]

    def _inflected(self, part: str, lemma: str, form: str) -> str:
        if not form:
            return lemma
        irregular = [f for f in self.forms[part].get(lemma, ()) if form == "s" or f.endswith("ing") == (form == "ing")]
        irregular = [f for f in irregular if part == "noun" or form != "s" or f.endswith("s")]
        return irregular[0] if irregular else inflect(lemma, form)


def inflect(lemma: str, form: str) -> str:
    """Return the regular plural or third person ("s"), past ("ed") or participle ("ing") of an English word."""
    if re.search(r"[^aeiou]y$", lemma) and form != "ing":
        return lemma[:-1] + ("ies" if form == "s" else "ied")
    if form == "s" and re.search(r"[^su]s$", lemma):  # a plural already: "earnings"
        return lemma
    if form == "s":
        return lemma + ("es" if re.search(r"(s|x|z|ch|sh)$", lemma) else "s")
    if re.fullmatch(r"[^aeiou]*[aeiou][^aeiouwxy]", lemma):
        return lemma + lemma[-1] + form
    if lemma.endswith("e") and (form == "ed" or not lemma.endswith(("ee", "oe", "ye"))):
        return lemma[:-1] + form
    return lemma + form


def _read_index(path: Path) -> dict[str, tuple[int, ...]]:
    entries = {}
    for line in path.read_text("ascii", "replace").splitlines():
        if line.startswith(" "):  # the licence
            continue
        lemma, _, senses, *rest = line.split()
        entries[lemma] = tuple(map(int, rest[-int(senses) :]))
    return entries


def _read_exceptions(path: Path) -> dict[str, tuple[str, ...]]:
    if not path.is_file():
        return {}
    lines = (line.split() for line in path.read_text("ascii", "replace").splitlines())
    return {form: tuple(lemmas) for form, *lemmas in lines}
