"""The benchmark on tiny random weights: what it checks, what it reports."""

from dataclasses import replace
from typing import Any

import pytest

from caw import ops
from caw.benchmark import cases
from caw.benchmark.cases import BenchmarkSettings, Case, run
from caw.benchmark.equality import DifferentTokensError, compare_tokens
from caw.benchmark.modes import check_modes, same_tokens
from caw.benchmark.subjects import Subject, load_subject, make_prompts, random_model
from caw.benchmark.timing import Made
from caw.evaluator import Evaluator

SMALL = BenchmarkSettings(
    shapes="tiny", dtype="float32", device="cpu", modes=("plain",), tokens=5, rounds=3, prompts=(9,)
)


@pytest.fixture(scope="module")
def subject() -> Subject:
    return load_subject("", "tiny", "float32", "cpu", None)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only calls move: 1 ms per new token of plain, 2 ms of any other mode, 5 ms for the first one."""
    now, real = [0.0], cases.call_of

    def counting(mode: str, job: Any) -> Any:
        do = real(mode, job)

        def call(tokens: int) -> Made:
            made = do(tokens)
            now[0] += 0.005 + (0.001 if mode == "plain" else 0.002) * (tokens - 1)
            return made

        return call

    monkeypatch.setattr(cases, "call_of", counting)
    monkeypatch.setattr(cases, "clock_for", lambda device, threads: ("counted", lambda: now[0]))


@pytest.mark.usefixtures("counted")
def test_rows_have_every_figure_and_sides_agree() -> None:
    modes = ("kgw+caw", "kgw+caw/batch", "kgw+caw/sequential", "exp+caw", "transformers", "transformers-kgw",
             "as-transformers-kgw", "transformers-static")  # fmt: skip
    found = run(replace(SMALL, modes=modes, batches=(1, 3)))
    assert found["clock"] == "counted" and found["arguments"]["dtype"] == "float32"
    assert found["evaluator"] == "random weights"
    names = [(row["mode"], row["batch"]) for row in found["rows"]]
    assert len(names) == len(set(names)) == 2 * (len(modes) + 1) and names[0] == ("plain", 1)
    for row in found["rows"]:
        cost = 1 if row["mode"] == "plain" else 2
        assert row["ratio"]["n"] == 3 and row["ratio"]["median"] == pytest.approx(cost)
        assert row["ms_per_token"]["median"] == pytest.approx(cost) and row["first_ratio"]["median"] == 1.0
        assert row["tokens_per_second"] == pytest.approx(row["batch"] * 5 / (0.005 + 4 * 0.001 * cost))
        assert row["first_token_ms"]["median"] == pytest.approx(5) and "peak_bytes" not in row
        assert row["warm_up_s"] > 0
    assert len(found["checks"]) == 2 * (2 + 2 + 1)
    assert not any("acceptance" in row for row in found["rows"])
    assert all(check["first"] == "" for check in found["checks"])


@pytest.mark.usefixtures("counted")
@pytest.mark.skipif(bool(ops.missing_extension()), reason="requires the compiled extension:")
def test_drafts_are_counted() -> None:
    found = run(replace(SMALL, modes=("plain/drafts", "kgw", "kgw/drafts", "kgw+caw", "kgw+caw/drafts"), rounds=1))
    drafted = [row for row in found["rows"] if row["mode"].endswith("/drafts")]
    assert len(drafted) == 3 and len(found["checks"]) == 3
    for row in drafted:
        assert row["tokens_per_pass"] >= 1 and row["rows_per_pass"] >= 1 and 0 <= row["acceptance"] <= 1


def test_a_run_too_short_to_time_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(1000))  # each run seems shorter than the one before
    monkeypatch.setattr(cases, "call_of", lambda mode, job: lambda tokens: Made([[0] * tokens]))
    monkeypatch.setattr(cases, "clock_for", lambda device, threads: ("slowing", lambda: next(ticks) ** 0.5))
    with pytest.warns(UserWarning, match="in a round plain took no longer for 5 tokens than for 1, .* more tokens"):
        run(SMALL)


def test_sides_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = cases.call_of

    def wrong(mode: str, job: Any) -> Any:
        def call(tokens: int) -> Made:
            made = real(mode, job)(tokens)
            if mode == "kgw+caw/batch":
                made.tokens[0][-1] += 1
            return made

        return call

    monkeypatch.setattr(cases, "call_of", wrong)
    settings = replace(SMALL, modes=("kgw+caw", "kgw+caw/batch"), rounds=1)
    with pytest.raises(DifferentTokensError, match=r"kgw\+caw and kgw\+caw/batch .* at sequence 0, token 4 \(0 of 1"):
        run(settings)
    found = run(replace(settings, dtype="bfloat16"))
    assert "sequence 0, token 4" in found["checks"][0]["first"]


def test_differences_to_transformers_are_forgiven_only_where_scores_tie(subject: Subject) -> None:
    prompts = make_prompts(subject, 1, 9)
    out = Case(replace(SMALL, modes=("transformers",)), subject, 1, 9, lambda message: None)
    assert [check.holds for check in out.checks] == [True]
    expected = Made([[7, 8, 9]])
    far = compare_tokens(subject.model, prompts, ("plain", expected), ("transformers", Made([[7, 1, 9]])))
    assert not far.holds and far.first == "sequence 0, token 1" and far.near_ties == 0
    head = subject.model.get_output_embeddings().weight
    before = head[1].clone()
    try:
        head[1] = head[8]  # now 1 and 8 always tie
        tied = compare_tokens(subject.model, prompts, ("plain", expected), ("transformers", Made([[7, 1, 9]])))
        ours = compare_tokens(subject.model, prompts, ("kgw+caw", expected), ("kgw+caw/batch", Made([[7, 1, 9]])))
    finally:
        head[1] = before
    assert tied.holds and tied.near_ties == 1 and not ours.holds


def test_a_mode_of_others_that_fails_is_a_row_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = cases.call_of

    def failing(mode: str, job: Any) -> Any:
        def call(tokens: int) -> Made:
            raise NotImplementedError("no compiler\nmore")

        return call if mode == "transformers-static" else real(mode, job)

    monkeypatch.setattr(cases, "call_of", failing)
    found = run(replace(SMALL, modes=("transformers-static",), rounds=1))
    assert [row.get("error") for row in found["rows"]] == [None, "NotImplementedError: no compiler"]


def test_an_untrained_evaluator_has_the_inputs_of_those_that_ship(subject: Subject) -> None:
    """It had no token classes, so that the benchmark's capacity policy did less than anybody's."""
    assert isinstance(subject.evaluator, Evaluator)
    ours, shipped = subject.evaluator.spec, Evaluator.load("smollm2-135m").spec
    assert (ours.size, ours.classes, ours.k) == (shipped.size, shipped.classes, shipped.k)


def test_prompts_have_the_length_and_differ_from_the_start(subject: Subject, demo_tokenizer: Any) -> None:
    for one in (subject, replace(subject, tokenizer=demo_tokenizer, text=True)):
        for length in (2, 31, 130):
            prompts = make_prompts(one, 3, length)
            assert [len(p) for p in prompts] == [length] * 3 and prompts == make_prompts(one, 3, length)
        assert len({tuple(p[:8]) for p in prompts}) == 3


def test_modes_are_checked() -> None:
    assert check_modes(["kgw", "kgw"]) == ("plain", "kgw")
    assert "transformers" in check_modes(["default"]) and "transformers-static" in check_modes(["all"])
    with pytest.raises(ValueError, match="got 'kgw\\+nothing'"):
        check_modes(["kgw+nothing"])
    assert same_tokens(["kgw+caw", "kgw+caw/drawn", "plain", "plain/drawn"]) == [], "drawn words are others"


@pytest.mark.parametrize(("change", "message"), [
    ({"tokens": 1}, "tokens"), ({"rounds": 0}, "rounds"), ({"batches": ()}, "batches must hold"),
    ({"prompts": (1,)}, "prompts"), ({"shapes": "gpt"}, "shapes must be one of"),
    ({"weights": "file"}, "weights are those of a model, got 'file' with shapes"),
    ({"weights": "int3", "shapes": None}, "weights must be one of file, file-fast, fp8, int8, int4"),
])  # fmt: skip
def test_bad_settings_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)


def test_cases_must_fit_the_model(subject: Subject) -> None:
    with pytest.raises(ValueError, match="32768 positions, got 32766"):
        Case(SMALL, subject, 1, 32766, lambda message: None)


def test_random_models_have_the_shapes_asked_for() -> None:
    model = random_model("tiny", "bfloat16", "cpu", vocab_size=77)
    assert model.get_input_embeddings().weight.shape == (77, 64) and str(model.dtype) == "torch.bfloat16"
    assert 0.015 < float(model.model.layers[0].mlp.up_proj.weight.float().std()) < 0.025
