"""Sketches beside the receipts: an edited text finds its receipt, others find none, and no text can be read."""

import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from cli.running import run
from registry.samples import begun, closed
from serve.serving import running
from tiny import tiny_model, tiny_tokenizer

from caw.detectable.trial import without_words
from caw.registry import Registry, open_registry, sketches, tables
from caw.registry.audit import export_lines
from caw.registry.master_key import MasterKeys, new_master_key
from caw.registry.sketches import FEWEST, sketch_of

WORDS = [
    f"{one}{two}{end}" for one in ("ba", "de", "ki", "lo", "mu") for two in "nrst" for end in ("a", "el", "or", "um")
]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key, for under one of fifty half a text does not find its receipt."""
    monkeypatch.setattr(sketches, "secrets", SimpleNamespace(token_bytes=lambda count: bytes(range(count))))


def text(seed: int, count: int = 200) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def send(registry: Registry, id: str, sent: str, tenant: str = "acme") -> None:
    sketch = registry.sketcher()(sent)
    registry.receipts.begin(begun(id, tenant=tenant)).close(closed(sketch=sketch))


def test_an_edited_text_finds_its_receipt_and_another_none(registry: Registry) -> None:
    for number in range(30):
        send(registry, f"r{number}", text(number), "acme" if number % 2 else "globex")
    for number in range(30):
        edited = without_words(text(number), 0.1, 0)
        [near] = registry.near(edited)
        both = (edited.split(), text(number).split())
        runs = [{tuple(words[i : i + 3]) for i in range(len(words) - 2)} for words in both]
        assert (near["receipt"], near["tenant"]) == (f"r{number}", "acme" if number % 2 else "globex")
        assert near["share"] == pytest.approx(len(runs[0] & runs[1]) / len(runs[1]), abs=0.25)
    assert [registry.near(text(seed)) for seed in range(100, 130)] == [[]] * 30
    joined = " ".join(text(5).split()[:120] + text(7).split()[:120]).upper() + "!"
    assert {each["receipt"] for each in registry.near(joined)} == {"r5", "r7"}
    assert registry.near(text(5), "globex") == [] != registry.near(text(5), "acme")


def test_many_texts_of_another_tenant_hide_none(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caw.registry.sketches.COMPARED", 3)
    for number in range(7):
        send(registry, f"r{number}", text(1), "globex")
    send(registry, "edited", without_words(text(1), 0.1, 0))
    assert [each["receipt"] for each in registry.near(text(1), "acme")] == ["edited"]
    assert {each["tenant"] for each in registry.near(text(1))} == {"globex"}


def test_short_texts_have_none(registry: Registry) -> None:
    key = bytes(32)
    assert sketch_of(text(1, FEWEST + 1), key) == b"" != sketch_of(text(1, FEWEST + 2), key)
    assert sketch_of("the sky " * 99, key) == sketch_of("", key) == b""
    send(registry, "short", text(1, FEWEST + 1))
    assert registry.near(text(1, FEWEST + 1)) == []


def test_neither_words_nor_values_are_in_the_export(registry: Registry) -> None:
    """Whoever verifies the receipts learns no more than before; another key gives other values."""
    send(registry, "one", text(1))
    assert "sketch" not in "".join(export_lines(registry.database))
    one, other = (sketch_of(text(1), bytes([number]) * 32) for number in (1, 2))
    assert one[:4] == other[:4] and sum(a == b for a, b in zip(one[4:], other[4:], strict=True)) < 8


def test_sketches_outlive_the_master_key_and_come_to_older_registries(tmp_path: Path) -> None:
    old, new = (MasterKeys.read({"CAW_MASTER_KEY": new_master_key()}).keys for _ in range(2))
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    registry = open_registry(url, MasterKeys(old), create=True)
    with registry.database.writing() as connection:
        for table in (tables.bands, tables.sketches):
            table.drop(connection)
    registry.receipts.begin(begun("before")).close(closed())
    assert registry.near(text(1)) == []
    send(registry, "one", text(1))
    open_registry(url, MasterKeys(new + old)).reseal()
    assert [each["receipt"] for each in open_registry(url, MasterKeys(new)).near(text(1))] == ["one"]
    with registry.database.reading() as connection:
        for table, count in ((tables.sketches, 1), (tables.bands, 32)):
            assert len(connection.execute(sa.select(table)).all()) == count


def test_a_served_text_is_found_by_the_command(tmp_path: Path) -> None:
    """What was sent has a sketch, of its whole; `caw detect --registry` names the receipt."""
    tiny_tokenizer().save_pretrained(tmp_path)
    tiny_model(len(tiny_tokenizer())).config.save_pretrained(tmp_path)
    master = {"CAW_MASTER_KEY": new_master_key()}
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    registry = open_registry(url, MasterKeys.read(master), create=True)
    registry.marking.create("one")
    with running(log=registry.receipts) as served:
        served.service.sketch = registry.sketcher()
        answers = [served.complete(f"sky {n}", max_tokens=200, temperature=1, seed=n) for n in range(3)]
    asked = ("detect", "--registry", url, "--tokenizer", str(tmp_path), "--json")
    for answer in answers:
        words = answer.choices[0].text.split()
        found = run(*asked, "--text", " ".join(words[3:]), key=None, environment=master)
        assert found.exit_code == 0, found.stderr
        [near] = json.loads(found.stdout)["close"]
        assert near["receipt"] == answer.to_dict()["caw"]["receipts"][0] and near["share"] > 0.5
    single = run(*asked[:-1], "--text", " ".join(words[3:]), key=None, environment=master).stdout
    assert f"Close to receipt {near['receipt']} of one, about {near['share']:.0%} of its shingles" in single
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for file, sent in zip(files, (" ".join(words), "the sky"), strict=True):
        file.write_text(sent)
    assert near["receipt"][:8] in run(*asked[:-1], *map(str, files), key=None, environment=master).stdout
