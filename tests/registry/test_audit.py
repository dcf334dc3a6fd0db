"""Verification: a whole chain passes, and no change of it does."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from registry.samples import begun, closed

from caw.registry import Registry
from caw.registry.audit import export_lines, verify
from caw.registry.chain import Signer, canonical

Lines = list[dict[str, Any]]


@pytest.fixture
def lines(registry: Registry) -> list[str]:
    for number in range(4):
        handle = registry.receipts.begin(begun(f"text {number}"))
        if number != 2:
            handle.close(closed(tokens=number))
        if number == 1:
            registry.receipts.rotate_signer()
    return list(export_lines(registry.database))


def dumped(entries: Lines) -> list[str]:
    return [canonical(entry) for entry in entries]


def test_a_whole_chain_passes(registry: Registry, lines: list[str]) -> None:
    first, second = registry.receipts.public_keys()
    found = verify(lines, first)
    assert (found.entries, found.begun, found.closed, found.open) == (9, 4, 3, ("text 2",))
    assert found.signers == (first, second) and found.last == json.loads(lines[-1])["digest"]
    assert list(export_lines(registry.database, after=7)) == lines[7:]


def test_an_empty_log_shows_nothing_of_the_service_whose_key_is_given(registry: Registry) -> None:
    assert verify([]).entries == 0  # without a key nothing is claimed
    key = registry.receipts.public_keys()[0]
    with pytest.raises(ValueError, match="which every log begins with, found an empty log; it was cut off"):
        verify([], key)
    first = next(iter(export_lines(registry.database)))
    assert verify([first], key).entries == 1  # what a service without any receipt exports


def signed_anew(entries: Lines) -> Lines:
    """What somebody makes of it who can write the database but has no master key: a chain of their own."""
    signer = Signer.new()
    out: Lines = []
    for number, entry in enumerate(entries, 1):
        fields = {name: entry[name] for name in ("chain", "kind", "receipt")}
        if entry["kind"] == "key":
            fields["receipt"] = {"id": signer.id, "public": signer.public}
        previous = out[-1]["digest"] if out else ""
        out.append(signer.entry({**fields, "sequence": number, "previous": previous}).as_dict())
    return out


def change(entries: Lines, place: int, **changes: Any) -> Lines:
    entries[place] = {**entries[place], **changes}
    return entries


ATTACKS: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "a field changed": (
        lambda e: change(e, 2, receipt={**e[2]["receipt"], "detected": False}),
        "line 3 of the receipts: expected the digest of its entry",
    ),
    "an entry dropped": (lambda e: e[:3] + e[4:], "line 4 .* expected entry 4 of the chain"),
    "the beginning dropped": (lambda e: e[1:], "line 1 .* expected entry 1"),
    "two swapped": (lambda e: [*e[:2], e[3], e[2], *e[4:]], "line 3 .* one was dropped, moved or put in"),
    "one doubled": (lambda e: [*e[:3], e[2], *e[3:]], "line 4 .* one was dropped, moved or put in"),
    "a signature of another entry": (
        lambda e: change(e, 2, signature=e[1]["signature"]), "line 3 .* the entry is not the service's",
    ),
    "no signature": (lambda e: change(e, 2, signature=""), "line 3 .* the entry is not the service's"),
    "a signature that is none": (lambda e: change(e, 2, signature="\u00e9"), "line 3 .* is not the service's"),
    "all signed anew": (signed_anew, "line 1 .* expected the public key that was given, found another"),
    "a field added": (lambda e: change(e, 2, note="x"), "line 3 .* expected an entry of `caw audit export`"),
    "no receipt": (lambda e: change(e, 2, receipt=None), "line 3 .* expected an entry of `caw audit export`"),
    "a digest that is a number": (lambda e: change(e, 2, digest=3), "line 3 .* fields of other kinds"),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_change_passes(registry: Registry, lines: list[str], attack: str) -> None:
    do, message = ATTACKS[attack]
    entries = do([json.loads(line) for line in lines])
    with pytest.raises(ValueError, match=message):
        verify(dumped(entries), registry.receipts.public_keys()[0])


def test_lines_that_are_no_entries_are_refused(lines: list[str]) -> None:
    for bad in ("", "{", "[]", "3", "{}", '{"chain": 1}'):
        with pytest.raises(ValueError, match="line 2 of the receipts: expected an entry of"):
            verify([lines[0], bad])


def test_an_old_key_signs_no_more_after_its_rotation(registry: Registry, lines: list[str]) -> None:
    """Who stole the first signing key cannot go on where the second one signs."""
    entries = [json.loads(line) for line in lines]
    [place] = [i for i, e in enumerate(entries) if e["kind"] == "key" and i]
    stolen = next(iter(registry.receipts._signers.values()))
    assert stolen.id == entries[0]["key"]
    fields = {name: entries[place + 1][name] for name in ("chain", "sequence", "kind", "previous", "receipt")}
    forged = [*entries[: place + 1], stolen.entry(fields).as_dict()]
    with pytest.raises(ValueError, match=f"line {place + 2} of the receipts: expected the signature of key"):
        verify(dumped(forged))


def test_a_cut_off_end_is_found_with_an_earlier_export(lines: list[str]) -> None:
    assert verify(lines, after=lines[:5]) == verify(lines)
    assert verify(lines[:5]).entries == 5  # by itself it is a whole chain
    with pytest.raises(ValueError, match=r"line 6 .* the end of the log was cut off"):
        verify(lines[:5], after=lines)
    other = dumped(signed_anew([json.loads(line) for line in lines]))
    with pytest.raises(ValueError, match=r"line 1 .* the log was written anew"):
        verify(other, after=lines)


def test_a_receipt_counts_once_and_ends_once(registry: Registry) -> None:
    """Even the service's own key cannot sign a log that counts a text twice."""
    signer = Signer.new()

    def chain(*kinds: tuple[str, str]) -> list[str]:
        made: Lines = []
        for kind, id in (("key", signer.id), *kinds):
            receipt = {"id": id, **({"public": signer.public} if kind == "key" else {})}
            fields = {"chain": "c", "sequence": len(made) + 1, "kind": kind, "receipt": receipt}
            made.append(signer.entry({**fields, "previous": made[-1]["digest"] if made else ""}).as_dict())
        return dumped(made)

    assert verify(chain(("begun", "a"), ("closed", "a"))).closed == 1
    for kinds, message in (
        ((("begun", "a"), ("begun", "a")), "a text was counted twice"),
        ((("closed", "a"),), "it had not begun, or was closed already"),
        ((("begun", "a"), ("closed", "a"), ("closed", "a")), "it had not begun, or was closed already"),
        ((("lost", "a"),), "expected an entry of kind key, begun or closed, found 'lost'"),
    ):
        with pytest.raises(ValueError, match=message):
            verify(chain(*kinds))
