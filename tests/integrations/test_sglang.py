"""Inside SGLang, whose scheduler is played here: the tokens of `caw.generate`, or an error, never an unmarked text.

What is played was read from SGLang 0.5.23: its sampler gives a processor the logits of its rows and what their requests
gave, each with a weak proxy of the request; ids are arrays; a refused request ends by `to_finish`.
"""

import dataclasses
import json
import pickle
import sys
import weakref
from array import array
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from decoding.architectures import EOS, VOCAB, prompt, tokenizer

import caw
from caw.integrations import sglang
from caw.policies.names import make_policy

KEY = "a house secret"
PROMPTS = [prompt(9), prompt(3, 2), prompt(5, 1)]
LENGTHS = [14, 6, 11]
PROFILES: dict[str, Any] = {
    "kgw": {"key": "house", "watermark": {"name": "kgw", "delta": 3.0}},
    "exp": {"key": "house", "watermark": {"name": "exp", "top_k": 20}},
    "race": {"key": "house", "watermark": {"name": "exp", "strength": "scale"}},
    "target": {"key": "house", "watermark": {"name": "unigram"}, "policy": {"name": "fixed", "target": 0.01}},
}
MARKS = {
    "kgw": caw.KGW(KEY, delta=3.0),
    "exp": caw.EXP(KEY, top_k=20),
    "race": caw.EXP(KEY, strength="scale"),
    "target": caw.Unigram(KEY),
}
FILE: dict[str, Any] = {"keys": {"house": {"env": "HOUSE"}}, "profiles": PROFILES, "default": "kgw", "opt_out": True}
DRAWN = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "sampling_seed": 7}
WHOLE = 1 << 30
CASES: list[tuple[str, dict[str, Any]]] = [
    ("kgw", {}), ("kgw", DRAWN), ("exp", {}), ("exp", DRAWN), ("race", DRAWN), ("target", {}), ("target", DRAWN),
]  # fmt: skip


class Abort:
    def __init__(self, message: str, status_code: int, err_type: str) -> None:
        self.message, self.status_code, self.err_type = message, status_code, err_type


class Req:
    def __init__(self, ids: list[int], given: Any, **own: Any) -> None:
        usual = {
            "temperature": 1.0, "top_k": 1, "top_p": 1.0, "min_p": 0.0, "sampling_seed": None, "max_new_tokens": 14,
            "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "beam_width": None,
            "stop_token_ids": None, "ignore_eos": False,
        }  # fmt: skip
        params = SimpleNamespace(**{**usual, **own})
        params.custom_params = given | {"__req__": weakref.proxy(self)} if isinstance(given, dict) else given
        self.sampling_params, self.tokenizer = params, SimpleNamespace(eos_token_id=EOS, additional_stop_token_ids=None)
        self.origin_input_ids, self.output_ids = array("q", ids), array("q")
        self.eos_token_ids: set[int] = set()
        self.inflight_middle_chunks, self.to_finish, self.finished_reason = 0, None, None

    def finished(self) -> bool:
        return self.finished_reason is not None


class Scheduler:
    """Forward, the processor, the sampler's own filters, results. late: overlapped, tokens come a step later."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def step(self, requests: list[Req], drafts: int = 1, late: bool = False) -> None:
        logits = torch.stack([self.logits(own) for own in requests for _ in range(drafts)])
        params = [own.sampling_params.custom_params for own in requests for _ in range(drafts)]
        processor = pickle.loads(bytes.fromhex(json.loads(sglang.LogitProcessor.to_str())["callable"]))()
        logits = processor(logits, params)  # a new one for each batch
        kept = logits.softmax(1)
        tokens = [int(torch.multinomial(row, 1)) for row in kept[::drafts]]  # whatever the sampler draws
        if late:
            tokens = [0] * len(tokens)
        for own, token in zip(requests, tokens, strict=True):
            if own.inflight_middle_chunks > 0:
                own.inflight_middle_chunks -= 1
                continue
            if not late:
                own.output_ids.append(token)
            if own.to_finish is not None:
                own.finished_reason, own.to_finish = own.to_finish, None
            elif token == EOS or len(own.output_ids) == own.sampling_params.max_new_tokens:
                own.finished_reason = "stop"

    def logits(self, own: Req) -> torch.Tensor:
        with torch.no_grad():
            ids = torch.tensor([[*own.origin_input_ids, *own.output_ids]])
            return self.model(ids).logits[0, -1].float()  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """The arguments of a server of the version that was tried, with a file of profiles."""
    arguments = SimpleNamespace(
        random_seed=5, max_running_requests=3, disable_overlap_schedule=True, speculative_algorithm=None
    )
    fakes: dict[str, dict[str, Any]] = {
        "sglang": {"__version__": "0.5.23"},
        "sglang.srt.runtime_context": {"get_server_args": lambda: arguments},
        "sglang.srt.managers.schedule_batch": {"FINISH_ABORT": Abort},
    }
    for name, values in fakes.items():
        module = ModuleType(name)
        module.__dict__.update(values)
        monkeypatch.setitem(sys.modules, name, module)
    path = tmp_path / "marks.json"
    path.write_text(json.dumps(FILE))
    monkeypatch.setenv("CAW_SGLANG_CONFIG", str(path))
    monkeypatch.setenv("HOUSE", KEY)
    sglang._engine.cache_clear()
    return arguments


def by_caw(model: Any, number: int, profile: str, own: dict[str, Any]) -> list[int]:
    policy = make_policy(**PROFILES[profile].get("policy", {"name": "fixed"}))
    sampling = {name.replace("sampling_", ""): value for name, value in own.items()}
    mark = MARKS[profile]
    if isinstance(mark, caw.EXP):
        mark = dataclasses.replace(mark, free=0)  # so short a request has no beginning
    return caw.generate(model, tokenizer(), [PROMPTS[number]], watermark=mark, policy=policy,
                        max_new_tokens=LENGTHS[number], do_sample=bool(own), **sampling).sequences[0]  # fmt: skip


def request(number: int, profile: str, **own: Any) -> Req:
    return Req(PROMPTS[number], {"caw_profile": profile}, max_new_tokens=LENGTHS[number], **own)


def engine() -> Any:
    return sglang._engine(torch.device("cpu"), VOCAB)


@pytest.mark.parametrize("profile, own", CASES)
def test_texts(llama: Any, profile: str, own: dict[str, Any]) -> None:
    expected = [by_caw(llama, number, profile, own) for number in range(3)]
    scheduler, (one, two, three) = Scheduler(llama), [request(number, profile, **own) for number in range(3)]
    two.inflight_middle_chunks = 2
    scheduler.step([two])
    scheduler.step([one, two])
    scheduler.step([two, one])
    scheduler.step([two, one, three])
    while not one.finished():
        scheduler.step([own for own in (three, one) if not own.finished()])
    while not all(own.finished() for own in (two, three)):  # the second has waited
        scheduler.step([own for own in (two, three) if not own.finished()])
    assert [list(own.output_ids) for own in (one, two, three)] == expected
    unmarked = caw.generate(llama, tokenizer(), [PROMPTS[0]], max_new_tokens=14).sequences[0]
    assert own or profile == "exp" or list(one.output_ids) != unmarked


def test_more_requests_than_rows(llama: Any) -> None:
    scheduler, every = Scheduler(llama), [request(number % 3, "kgw") for number in range(7)]
    expected = [by_caw(llama, number, "kgw", {}) for number in range(3)]
    while going := [own for own in every if not own.finished()]:
        scheduler.step(going[:3])
        every = [*every[3:], *every[:3]]
    assert sorted(list(own.output_ids) for own in every) == sorted(expected[number % 3] for number in range(7))


def test_a_request_that_is_gone_gives_its_row_back(llama: Any) -> None:
    scheduler = Scheduler(llama)
    for _ in range(9):
        scheduler.step([request(0, "kgw"), request(1, "exp")])
    last = request(0, "kgw")
    scheduler.step([last])
    held = engine()
    assert len(held._requests) == 1 and [len(own.started) for own in held.texts.choosers.values()] == [1, 0, 0, 0]


def test_a_request_that_cannot_be_marked_ends_with_400_and_no_text(llama: Any) -> None:
    for given, own, said in (
        ({"caw_profile": "nope"}, {}, "caw_profile must be one of kgw, exp, race, target, off, got 'nope'"),
        ({"caw_key": 1}, {}, "custom_params must name caw_profile or nothing of caw, got 'caw_key'"),
        ({"caw_profile": "off"}, {}, "caw_profile must not be 'off' beside caw's processor"),
        ({}, {"beam_width": 2}, "beam_width must be None"),
        ({}, {"top_k": WHOLE, "sampling_seed": -4}, "seed must be an integer in"),
    ):
        scheduler, wrong = Scheduler(llama), Req(PROMPTS[0], given, **own)
        right = request(1, "kgw", repetition_penalty=1.1)  # the logits have it already
        while not right.finished():
            scheduler.step([each for each in (wrong, right) if not each.finished()])
        reason: Any = wrong.finished_reason
        assert reason.message.startswith(said) and "\n" not in reason.message and KEY not in reason.message
        assert (reason.status_code, reason.err_type) == (400, "BadRequestError") and list(wrong.output_ids) == [EOS]
        assert list(right.output_ids) == by_caw(llama, 1, "kgw", {})


def test_servers_that_cannot_mark(llama: Any, server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    for change, said in (
        (lambda to: to.delenv("CAW_SGLANG_CONFIG"), "CAW_SGLANG_CONFIG must name the file"),
        (lambda to: to.setattr(sys.modules["sglang"], "__version__", "0.6.0"), "sglang must be 0.5.23, got 0.6.0"),
        (lambda to: to.setattr(server, "disable_overlap_schedule", False), "overlapped scheduling hides each text's"),
        (lambda to: to.setattr(server, "speculative_algorithm", "EAGLE"), "must not have speculative decoding"),
        (lambda to: None, "one row a step, got drafts too"),
        (lambda to: None, "JSON must be marked with the engine's tokenizer"),
    ):
        with monkeypatch.context() as patch:
            change(patch)
            sglang._engine.cache_clear()
            own = request(0, "kgw", json_schema="{}" if "JSON" in said else None)
            Scheduler(llama).step([own], drafts=2 if "drafts" in said else 1)
        reason: Any = own.finished_reason
        assert said in reason.message and reason.status_code == 500


def test_ids_that_are_missing_or_changed_end_the_text(llama: Any) -> None:
    scheduler, missing, changed = Scheduler(llama), request(0, "kgw"), request(1, "kgw")
    scheduler.step([missing, changed])
    missing.output_ids.pop()
    changed.output_ids[-1] = (changed.output_ids[-1] + 1) % VOCAB
    scheduler.step([missing, changed])
    reasons: list[Any] = [own.finished_reason for own in (missing, changed)]
    assert [reason.status_code for reason in reasons] == [500, 500]
    assert "must be the one that was chosen" in reasons[1].message


def test_a_request_without_an_object_is_an_error(llama: Any) -> None:
    with pytest.raises(ValueError, match=r"custom_params must be an object beside .*, got none; send \{\}"):
        Scheduler(llama).step([Req(PROMPTS[0], None)])


def test_a_request_names_the_class_and_brings_no_code() -> None:
    sent = bytes.fromhex(json.loads(sglang.LogitProcessor.to_str())["callable"])
    assert pickle.loads(sent) is sglang.LogitProcessor and len(sent) < 100


def test_the_example_of_the_page(llama: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
    (tmp_path / "marks.json").write_text(page.split("```json\n")[1].split("```")[0])
    monkeypatch.setenv("HOUSE_KEY", KEY)
    sent: dict[str, Any] = {}
    completions = pytest.importorskip("openai.resources.chat.completions").Completions
    monkeypatch.setattr(completions, "create", lambda self, **own: sent.update(own["extra_body"]))
    names = {"openai": pytest.importorskip("openai")}
    exec(page.split("## SGLang")[1].split("```python\n")[1].split("```")[0], names)
    assert sent["custom_logit_processor"] == sglang.LogitProcessor.to_str()
    own = Req(PROMPTS[0], sent["custom_params"], max_new_tokens=8)
    while not own.finished():
        Scheduler(llama).step([own])
    watermark, policy = caw.KGW(KEY, delta=2.0), caw.FixedStrength(1.0, target=0.001)
    expected = caw.generate(llama, tokenizer(), [PROMPTS[0]], watermark=watermark, policy=policy, max_new_tokens=8)
    assert list(own.output_ids) == expected.sequences[0]
