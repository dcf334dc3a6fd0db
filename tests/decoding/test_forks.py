"""Identity 11: a fork goes on as the uninterrupted text, bitwise; and a reading says what the mark would choose."""

from typing import Any

import pytest
import torch
from decoding.architectures import build, prompt
from decoding.running import make_decoder
from decoding.test_continued import policy_of
from decoding.test_evidence import MARKS
from pairwise import pairwise

from caw.decoding.along import MOST_LOST, TextReading
from caw.decoding.forks import Fork, ForkDecoder, OldText, ReadRequest, ReadSequence, Stem
from caw.decoding.request import Request
from caw.decoding.row_settings import MAX_MARGIN, RowLimits, RowSettings

LENGTH, CUTS = 18, (1, 6, 11, 16)
BEGINNING = prompt(40, 3)
PROMPTS = [[*BEGINNING, *prompt(5)], [*BEGINNING, *prompt(3, 1)]]


def decoder_for(model: Any, name: str | None, kind: str, rows: int = 3, **settings: Any) -> ForkDecoder:
    plain = make_decoder(
        model, MARKS[name] if name else None, policy_of(model, kind) if name else None, rows, 70,
        max_new_tokens=LENGTH, limits=LIMITS, **settings,
    )  # fmt: skip
    return ForkDecoder(model, plain.plan)


LIMITS = RowLimits.of([RowSettings(max_new_tokens=LENGTH, strength_factor=each) for each in (0.0, 1.0, 2.0)], ())
ROW = RowSettings(max_new_tokens=LENGTH)


class Watch:
    def __init__(self, decoder: ForkDecoder) -> None:
        self.decoder, self.logits = decoder, dict[int, list[torch.Tensor]]()
        self.decode, decoder.step.decode = decoder.step.decode, self.step  # type: ignore[method-assign]

    def step(self, state: Any, cache: Any) -> Any:
        before = state.logits.clone()
        done = self.decode(state, cache)
        for number, sequence in enumerate(self.decoder.rows):
            if sequence is not None and bool(done.emitted[number]):
                self.logits.setdefault(sequence.index, []).append(before[number])
        return done


CASES = [("llama", name, kind, False) for name, kind in pairwise([None, *MARKS], ["target", "capacity"])]
CASES += [(name, "lefthash", "capacity", False) for name in ("phi3", "granite")]
CASES += [("llama", name, "capacity", True) for name in ("lefthash", "scale")]


@pytest.mark.parametrize(("architecture", "name", "kind", "fixed"), CASES)
def test_a_fork_is_the_uninterrupted_text(architecture: str, name: str | None, kind: str, fixed: bool) -> None:
    """Tokens and logits, whatever the place, whatever stood in the row before."""
    decoder = decoder_for(build(architecture), name, kind, speculate=None, fixed=fixed)
    watch, stems = Watch(decoder), [Stem() for _ in PROMPTS]
    wholes: dict[int, Any] = {}
    forks: dict[int, tuple[int, int]] = {}
    first = [Fork(ids, LENGTH, ROW, stem=stem, saves=True) for ids, stem in zip(PROMPTS, stems, strict=True)]
    for sequence in decoder.run(first):
        if sequence.index < len(PROMPTS):
            wholes[sequence.index] = sequence
            for cut in CUTS:
                begun = tuple(sequence.tokens[:cut])
                fork = Fork(PROMPTS[sequence.index], LENGTH, ROW, 0, begun, stem=stems[sequence.index])
                forks[decoder.waiting.add(fork, ahead=True)] = sequence.index, cut
        else:
            whole, cut = forks.pop(sequence.index)
            assert sequence.tokens == wholes[whole].tokens
            begun = len(sequence.request.begun)  # one less, where the last token is the first step's only candidate
            assert begun == (cut if fixed else cut - 1)
            ours, theirs = watch.logits[sequence.index][cut - begun :], watch.logits[whole][cut:]
            assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert not forks and len(wholes) == 2


def forked(model: Any, speculate: int | None) -> dict[int, Any]:
    """An unmarked text, a fork of it with another token, and one without."""
    decoder, stem, made = decoder_for(model, "lefthash", "capacity", speculate=speculate), Stem(), dict[int, Any]()
    plain = RowSettings(max_new_tokens=LENGTH, strength_factor=0.0)
    for sequence in decoder.run([Fork(PROMPTS[0], LENGTH, plain, stem=stem, saves=True)]):
        made[sequence.index] = sequence
        if sequence.index == 0:
            old = tuple(sequence.tokens)
            for begun in ((*old[:4], (old[4] + 1) % 50), old[:4]):
                decoder.waiting.add(Fork(PROMPTS[0], LENGTH, plain, 0, begun, stem, old))
    return made


def test_drafts_of_the_old_text_change_nothing_and_are_accepted(llama: Any) -> None:
    alone, drafted = forked(llama, None), forked(llama, 4)
    for number in range(3):
        assert alone[number].tokens == drafted[number].tokens
    assert alone[2].tokens == alone[0].tokens != alone[1].tokens
    drafts = drafted[2].trace.drafts
    assert drafts.accepted == drafts.drafted > 0, "they are the text"


@pytest.mark.parametrize(
    "name, kind", [("lefthash", "capacity"), ("selfhash", "target"), ("top_k", "capacity"), ("unigram", "target")]
)
def test_a_reading_proposes_what_a_marked_fork_chooses(llama: Any, name: str, kind: str) -> None:
    """At each place of the unmarked text, the token that a marked text would go on with there."""
    decoder, stem = decoder_for(llama, name, kind), Stem()
    plain = RowSettings(max_new_tokens=LENGTH, strength_factor=0.0)
    marked = RowSettings(max_new_tokens=LENGTH, margin=MAX_MARGIN)
    places: dict[int, int] = {}
    chosen: dict[int, int] = {}
    text: list[int] = []
    reading: Any = None

    def chosen_one(sequence: Any) -> bool:
        return len(sequence.tokens) > places.get(sequence.index, LENGTH)

    for sequence in decoder.run([Fork(PROMPTS[1], LENGTH, plain, stem=stem, saves=True)], chosen_one):
        if sequence.index == 0:
            text = sequence.tokens
            decoder.waiting.add(
                ReadRequest(PROMPTS[1], LENGTH, marked, 0, tuple(text[:-1]), stem, last=text[-1], strengths=(1.0, 2.0))
            )
        elif isinstance(sequence, ReadSequence):
            reading = sequence.reading
            for place in range(1, LENGTH - 1):
                request = Fork(PROMPTS[1], LENGTH, marked, 0, tuple(text[:place]), stem)
                places[decoder.waiting.add(request)] = place
        else:
            chosen[places[sequence.index]] = sequence.tokens[-1]
    assert len(reading.own) == LENGTH and max(reading.own) <= 0
    proposed = {each.place: each.token for each in reading.choices if each.level == 0 and 1 <= each.place < LENGTH - 1}
    assert proposed == {place: token for place, token in chosen.items() if token != text[place]} and proposed
    assert all(each.lost > 0 and each.trace.token == each.token for each in reading.choices)


@pytest.mark.parametrize("since", [0, 5])
@pytest.mark.parametrize("name, kind", [("lefthash", "capacity"), ("selfhash", "target"), ("top_k", "capacity")])
def test_a_reading_from_records_is_that_of_a_forward(llama: Any, name: str, kind: str, since: int) -> None:
    """And it proposes other tokens, whatever the key."""
    decoder, stem, readings = decoder_for(llama, name, kind), Stem(), list[TextReading]()
    plain = RowSettings(max_new_tokens=LENGTH, strength_factor=0.0)
    marked = RowSettings(max_new_tokens=LENGTH, margin=MAX_MARGIN)
    text: list[int] = []
    for sequence in decoder.run([Fork(PROMPTS[1], LENGTH, plain, stem=stem, saves=True)]):
        text = text or sequence.tokens
        if isinstance(sequence, ReadSequence) and sequence.reading is not None:
            readings.append(sequence.reading)
            stem.records = []
        if len(readings) < 2:
            reading = ReadRequest(
                PROMPTS[1], LENGTH, marked, 0, tuple(text[:-1]), stem,
                last=text[-1], strengths=(1.0, 2.0), since=since,
            )  # fmt: skip
            decoder.waiting.add(reading)
    kept, read = readings
    assert kept.since == read.since == since and kept.own == pytest.approx(read.own, abs=1e-4)
    assert [(c.place, c.token, c.level) for c in kept.choices] == [(c.place, c.token, c.level) for c in read.choices]
    assert [c.lost for c in kept.choices] == pytest.approx([c.lost for c in read.choices], abs=1e-4)
    likely = {(c.place, c.token) for c in kept.likely}
    assert likely >= {(c.place, c.token) for c in kept.choices if c.lost <= MOST_LOST} and not read.likely
    assert likely and all(place >= since and token != text[place] for place, token in likely)


def test_a_guess_goes_on_where_the_old_text_matches() -> None:
    old = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    follower = OldText(old)
    follower.extend([1, 2])
    assert list(follower.after(99, 3).tokens) == [4, 5, 6], "the same place, where nothing matches"
    follower.extend([99, 3])
    assert list(follower.after(4, 3).tokens) == [5, 6, 7], "shifted by one"


def test_a_request_without_a_stem_is_an_ordinary_one(llama: Any) -> None:
    decoder = decoder_for(llama, None, "capacity")
    [whole] = list(decoder.run([Request(PROMPTS[0], LENGTH, ROW)]))
    assert len(whole.tokens) == LENGTH
