"""A report measures: a marked text is found under its key, an unmarked one is not, and each counts where it belongs."""

import functools

import pytest
import torch
from registry.samples import begun, closed

from caw.detectable.receipts import text_digest
from caw.registry import Registry
from caw.registry.report import OPEN, Given, make_report
from caw.registry.report_page import page
from caw.watermarks import KGW

WORDS = 500


def words(texts: list[str], **options: object) -> dict[str, list[list[int]]]:
    return {"input_ids": [[int(word) for word in text.split()] for text in texts]}


@functools.cache
def marked(mark: KGW, count: int, start: int) -> str:
    ids = [start]
    while len(ids) < count:
        green = mark.green_vocabulary(torch.tensor([ids[-1:]]), WORDS)[0].nonzero()[:, 0]
        ids.append(int(green[(len(ids) * 7 + start) % len(green)]))
    return " ".join(map(str, ids))


@pytest.fixture
def texts(registry: Registry) -> list[str]:
    """Three texts under key 7 of acme: two with receipts, one whose key is said beside it."""
    registry.marking.create("acme", key=7)
    registry.marking.create("globex", key=8)
    made = [marked(KGW(key=7), count, start) for count, start in ((450, 1), (320, 2), (230, 3))]
    for number, text in enumerate(made[:2]):
        handle = registry.receipts.begin(begun(f"r{number}", key_id=KGW(key=7).key_id))
        tested = {"versions": {"caw": "1.2"}} if number else None
        handle.close(
            closed(digest=text_digest(text), detected=number == 0, tested=tested, tokens=300, open=(150, 250)[number])
        )
    registry.receipts.begin(begun("open", key_id=KGW(key=7).key_id))
    registry.receipts.begin(begun("tool", key_id="", unmarked="tool call"))
    return made


def unmarked() -> list[Given]:
    generator = torch.Generator().manual_seed(0)
    texts = [" ".join(map(str, torch.randint(0, WORDS, (60,), generator=generator).tolist())) for _ in range(100)]
    return [Given(text, language="de" if n < 30 else "") for n, text in enumerate(texts)]


def test_what_it_measures(registry: Registry, texts: list[str]) -> None:
    id = KGW(key=7).key_id
    given = [Given(texts[0], language="de"), Given(texts[1]), Given(texts[2], id, "de"), Given("1 2 3"),
             Given("1 2 3", "ffffffff")]  # fmt: skip
    report = make_report(registry, words, unmarked(), given)
    ours, other = report.keys
    assert (ours.id, ours.marked, other.marked, report.strangers) == (id, 3, 0, 2)
    assert report.unmarked_texts == {"tool call": 1} and report.chain.begun == 4
    what = "smollm2-135m, kgw(gamma=0.25), FixedStrength(strength=1.0)"
    assert report.ran == {what: 3, "caw 1.2": 1} and f"<dd>3: {what}</dd>" in page(report)
    assert ours.receipts["begun"] == 3 and ours.receipts["open"] == 1 and ours.receipts["complete"] == 2
    assert ours.receipts["detected"] == ours.receipts["undetected"] == 1 and other.receipts == {}
    as_left = {row.tokens: (row.texts, row.measured) for row in ours.power[0].rows}
    assert as_left == {200: (3, 1.0), 300: (2, 1.0), 400: (1, 1.0)}
    groups = {power.group: [row.texts for row in power.rows] for power in ours.power[3:]}
    assert groups == {OPEN[1]: [1, 1, 1], OPEN[2]: [1, 1, 0], "language: de": [2, 1, 1]}
    assert ours.nulls["de"].texts == 30 and f'<th scope="row">{OPEN[1]}</th>' in page(report)
    assert "30 unmarked texts, language: de" in page(report)
    assert ours.power[2].rows[0].texts < 3  # three tenths of the words are gone: texts got shorter
    assert other.power == ()
    for key in report.keys:  # 100 texts at 1e-3: four alarms would be one in ten thousand
        assert key.null.texts == 100 and key.null.rates[2].found < 4


def test_keys_that_mark_no_more_on_demand(registry: Registry, texts: list[str]) -> None:
    registry.marking.revoke(KGW(key=7).key_id)
    given = [Given(texts[0])]
    assert [key.tenant for key in make_report(registry, words, unmarked()[:9], given).keys] == ["globex"]
    both = make_report(registry, words, unmarked()[:9], given, every=True)
    assert {(key.tenant, key.state, key.marked) for key in both.keys} == {
        ("acme", "revoked", 1),
        ("globex", "valid", 0),
    }


def test_a_log_that_was_changed_is_not_reported_on(registry: Registry, texts: list[str]) -> None:
    from caw.registry import tables

    with registry.database.writing() as connection:
        at = tables.receipts.c.sequence == 3
        connection.execute(tables.receipts.update().where(at).values(digest="0" * 64))
    with pytest.raises(ValueError, match="line 3 of the receipts: expected the digest of its entry"):
        make_report(registry, words, unmarked()[:9], [])
