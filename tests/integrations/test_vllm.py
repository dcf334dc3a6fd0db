"""Inside vLLM, whose runners are played here: the tokens of `caw.generate`, or an error, never an unmarked text."""

import json
import sys
from enum import Enum, auto
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from decoding.architectures import EOS, VOCAB, prompt, spread_evaluator, tokenizer
from integrations.profile_file import FILE, KEY, PROFILES
from tiny import tiny_tokenizer

import caw
from caw.integrations import engine_texts, vllm
from caw.integrations.profiles import load
from caw.policies.names import make_policy

pytestmark = pytest.mark.usefixtures("installed")

PROMPTS = [prompt(9), prompt(3, 2), prompt(5, 1), prompt(9)]
LENGTHS = [14, 6, 11, 9]
DRAWN = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "seed": 7}


def parameters(**own: Any) -> SimpleNamespace:
    profile = own.pop("profile", None)
    usual = {
        "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": None, "max_tokens": 14,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "logprobs": None,
        "all_stop_token_ids": {EOS}, "extra_args": None if profile is None else {"caw_profile": profile},
    }  # fmt: skip
    return SimpleNamespace(**{**usual, **own})


def engine(**own: Any) -> SimpleNamespace:
    model = SimpleNamespace(
        max_model_len=64, seed=0, enable_prompt_embeds=False, get_vocab_size=lambda: own.pop("vocab", VOCAB)
    )
    return SimpleNamespace(**{
        "model_config": model, "scheduler_config": SimpleNamespace(max_num_seqs=4), "speculative_config": None, **own,
    })  # fmt: skip


def by_caw(model: Any, number: int, profile: str | None, own: dict[str, Any]) -> list[int]:
    watermark, policy = None, None
    if profile is not None:
        said = dict(PROFILES[profile])
        key = KEY if said["key"] == "house" else 11
        watermark = {"kgw": caw.KGW(key, delta=3.0), "exp": caw.EXP(key, top_k=20), "target": caw.Unigram(key)}[profile]
        policy = make_policy(**said.get("policy", {"name": "fixed"}))
    sampling = {"do_sample": True, **own} if own else {}
    return caw.generate(model, tokenizer(), [PROMPTS[number]], watermark=watermark, policy=policy,
                        max_new_tokens=LENGTHS[number], **sampling).sequences[0]  # fmt: skip


def logits_of(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids]).clamp_min(0)).logits[0, -1].float()  # type: ignore[no-any-return]


class Move(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


class V1:
    """The persistent batch of the V1 runner, with its updates; ids are lists that grow."""

    def __init__(self, model: Any) -> None:
        self.model, self.processor = model, vllm.LogitsProcessor(engine(), torch.device("cpu"), False)
        self.batch: list[Any] = []
        self.update: Any = None

    def add(self, params: Any, ids: list[int], output: list[int] | None = None, row: int | None = None) -> Any:
        request = SimpleNamespace(params=params, prompt=ids, output=[] if output is None else output)
        place = len(self.batch) if row is None else row
        self.batch[place : place + 1] = [request]
        self.changes().added.append((place, params, ids, request.output))
        return request

    def changes(self) -> Any:
        self.update = self.update or SimpleNamespace(removed=[], added=[], moved=[])
        return self.update

    def remove(self, request: Any, *, condense: bool) -> None:
        """As `condense` does: the last request moves to the empty place, which is then no longer among the removed."""
        row, last = self.batch.index(request), len(self.batch) - 1
        if condense and row != last:
            self.changes().moved.append((last, row, Move.UNIDIRECTIONAL))
            self.batch[row] = self.batch[last]
        else:
            self.changes().removed.append(row)
        self.batch.pop()

    def swap(self, one: int, other: int) -> None:
        self.changes().moved.append((one, other, Move.SWAP))
        self.batch[one], self.batch[other] = self.batch[other], self.batch[one]

    def step(self, discarded: Any = ()) -> None:
        """Forward and sampling; the tokens of discarded requests are thrown away, as of unfinished prompts."""
        self.processor.update_state(self.update)
        self.update = None
        logits = torch.stack([logits_of(self.model, [*own.prompt, *own.output]) for own in self.batch])
        for request, token in zip(self.batch, self.processor.apply(logits).argmax(1).tolist(), strict=True):
            if request not in discarded:
                request.output.append(token)


def choosers(processor: Any) -> list[caw.Chooser]:
    return list(processor._runner._texts.all.choosers.values())


PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2}
CASES = [("kgw", {}), ("kgw", DRAWN), ("exp", {}), ("exp", DRAWN), ("target", {}), ("target", {**DRAWN, **PENALTIES}),
         ("off", {})]  # fmt: skip


@pytest.mark.parametrize("profile, own", CASES)
def test_v1(llama: Any, profile: str, own: dict[str, Any]) -> None:
    expected = [by_caw(llama, n, None if profile == "off" else profile, own) for n in range(3)]
    runner = V1(llama)
    one, two, three = (parameters(profile=profile, max_tokens=LENGTHS[n], **own) for n in range(3))
    other = runner.add(parameters(profile="exp" if profile != "exp" else "kgw"), PROMPTS[3])
    first, second = runner.add(one, PROMPTS[0]), runner.add(two, PROMPTS[1])
    runner.step(discarded=[first, second])  # the first chunk of their prompts
    runner.step()
    runner.swap(0, 1)
    third = runner.add(three, PROMPTS[2])
    runner.step()
    runner.remove(first, condense=True)  # preempted; the third moves to its place
    runner.step()
    first = runner.add(one, PROMPTS[0], first.output)
    runner.step()
    runner.remove(other, condense=False) if runner.batch[-1] is other else runner.remove(other, condense=True)
    requests = [first, second, third]
    while pending := [n for n, own in enumerate(requests) if len(own.output) < len(expected[n])]:
        for request in list(runner.batch):
            if requests.index(request) not in pending:
                runner.remove(request, condense=True)
        runner.step()
    made = [own.output[: len(ids)] for own, ids in zip(requests, expected, strict=True)]
    if profile == "off":
        assert made == expected
        return
    assert made == expected
    assert made != [by_caw(llama, n, None, own) for n in range(3)]
    for request in list(runner.batch):
        runner.remove(request, condense=True)
    runner.processor.update_state(runner.update)
    assert all(chooser.started == () for chooser in choosers(runner.processor))


def test_v1_a_new_request_in_the_place_of_an_old_one(llama: Any) -> None:
    runner = V1(llama)
    runner.add(parameters(), PROMPTS[1])
    runner.step()
    new = runner.add(parameters(), PROMPTS[0], row=0)
    while len(new.output) < 5:
        runner.step()
    assert new.output == by_caw(llama, 0, "kgw", {})[:5]
    runner.add(parameters(profile="off"), PROMPTS[0], row=0)
    runner.step()
    assert all(chooser.started == () for chooser in choosers(runner.processor))


def test_v1_tokens_that_the_engine_takes_back(llama: Any) -> None:
    runner = V1(llama)
    request = runner.add(parameters(**DRAWN), PROMPTS[0])
    for _ in range(6):
        runner.step()
    del request.output[2:]
    while len(request.output) < 14:
        runner.step()
    assert request.output == by_caw(llama, 0, "kgw", DRAWN)[:14]


def test_v1_several_answers_and_no_seed(llama: Any) -> None:
    """vLLM gives each of n answers a seed of its own; without one, each draws its own, alike in every process."""

    def made(seeds: list[int | None]) -> list[list[int]]:
        runner = V1(llama)
        requests = [runner.add(parameters(temperature=1.0, seed=seed), PROMPTS[0]) for seed in seeds]
        for _ in range(6):
            runner.step()
        return [request.output for request in requests]

    for seeds in ([7, 8], [None, None]):
        one, two = made(seeds)
        assert one != two and made(seeds) == [one, two]


@pytest.mark.parametrize(("output", "said"), [
    ([-1], r"must be in \[0, 131\), got -1; give real ids"), ([5], "must be the one that was chosen"),
])  # fmt: skip
def test_v1_ids_that_are_missing_or_changed_are_an_error(llama: Any, output: list[int], said: str) -> None:
    runner = V1(llama)
    request = runner.add(parameters(), PROMPTS[0])
    runner.step()
    request.output[-1:] = output
    with pytest.raises(ValueError, match=said):
        runner.step()


def test_v1_a_request_without_ids_is_an_error() -> None:
    processor = vllm.LogitsProcessor(engine(), torch.device("cpu"), False)
    processor.update_state(SimpleNamespace(removed=[], added=[(0, parameters(), None, [])], moved=[]))
    with pytest.raises(ValueError, match="must have the ids of its prompt, got none"):
        processor.apply(torch.randn(1, VOCAB))


class V2:
    """The V2 runner: slots, ids on the device, rows in any order."""

    def __init__(self, model: Any) -> None:
        self.model, rows, longest = model, 4, 64
        ids, total = torch.zeros(rows, longest, dtype=torch.int32), torch.zeros(rows, dtype=torch.int32)
        self.states = SimpleNamespace(
            device=torch.device("cpu"), max_num_reqs=rows, vocab_size=VOCAB, all_token_ids=SimpleNamespace(gpu=ids),
            total_len=SimpleNamespace(gpu=total), prompt_len=SimpleNamespace(np=torch.zeros(rows).int().numpy()),
        )  # fmt: skip
        self.processor = vllm.LogitsProcessor(engine(), self.states)
        self.params: dict[int, Any] = {}

    def add(self, slot: int, params: Any, ids: list[int], output: list[int]) -> None:
        self.params[slot], whole = params, [*ids, *output]
        self.states.all_token_ids.gpu[slot, : len(whole)] = torch.tensor(whole)
        self.states.total_len.gpu[slot], self.states.prompt_len.np[slot] = len(whole), len(ids)
        self.processor.add_request(slot, params)
        self.processor.apply_staged_writes()

    def output(self, slot: int) -> list[int]:
        begin, end = int(self.states.prompt_len.np[slot]), int(self.states.total_len.gpu[slot])
        return self.states.all_token_ids.gpu[slot, begin:end].tolist()  # type: ignore[no-any-return]

    def step(self, slots: list[int], discarded: Any = ()) -> None:
        known = [self.states.all_token_ids.gpu[s, : int(self.states.total_len.gpu[s])].tolist() for s in slots]
        logits = torch.stack([logits_of(self.model, ids) for ids in known])
        for row, (slot, ids) in enumerate(zip(slots, known, strict=True)):  # V2 does so before the processor
            own, seen = self.params[slot], logits[row, ids]
            logits[row, ids] = torch.where(seen < 0, seen * own.repetition_penalty, seen / own.repetition_penalty)
            counts = torch.bincount(torch.tensor(self.output(slot), dtype=torch.int64), minlength=VOCAB)
            logits[row] -= own.frequency_penalty * counts + own.presence_penalty * (counts > 0)
        context = SimpleNamespace(expanded_idx_mapping=torch.tensor(slots))
        tokens = self.processor.apply(logits, context).argmax(1).tolist()
        for slot, token in zip(slots, tokens, strict=True):
            if slot not in discarded:
                self.states.all_token_ids.gpu[slot, int(self.states.total_len.gpu[slot])] = token
                self.states.total_len.gpu[slot] += 1


@pytest.mark.parametrize("profile, own", CASES[:-1])
def test_v2(llama: Any, profile: str, own: dict[str, Any]) -> None:
    expected = [by_caw(llama, n, profile, own) for n in range(3)]
    runner = V2(llama)
    one, two, three = (parameters(profile=profile, max_tokens=LENGTHS[n], **own) for n in range(3))
    runner.add(3, one, PROMPTS[0], [])
    runner.add(0, two, PROMPTS[1], [])
    runner.add(2, parameters(profile="off"), PROMPTS[3], [])
    runner.step([3, 0, 2], discarded=[3])
    runner.step([0, 2, 3])
    runner.step([2, 3])
    begun = runner.output(3)
    runner.add(1, one, PROMPTS[0], begun)
    runner.add(3, three, PROMPTS[2], [])
    while len(runner.output(0)) < len(expected[1]):
        runner.step([3, 1, 0, 2])
    runner.add(0, parameters(profile="off"), PROMPTS[3], [])
    for slot, ids in ((1, expected[0]), (3, expected[2])):
        while len(runner.output(slot)) < len(ids):
            runner.step([0, slot])
        assert runner.output(slot)[: len(ids)] == ids
    assert runner.output(2) == by_caw(llama, 3, None, {})[: len(runner.output(2))]
    assert [len(chooser.started) for chooser in choosers(runner.processor) if chooser.started] == [2]


def test_v2_refuses_drafts_and_other_ids(llama: Any) -> None:
    runner = V2(llama)
    runner.add(1, parameters(), PROMPTS[0], [])
    with pytest.raises(ValueError, match="one row a step, got drafts too; switch speculation off"):
        runner.step([1, 1])
    runner.step([1])
    runner.states.all_token_ids.gpu[1, 9] += 1
    with pytest.raises(ValueError, match="must be the one that was chosen"):
        runner.step([1])


def test_requests_that_are_refused() -> None:
    for own, said in (
        ({"profile": "nope"}, "caw_profile must be one of kgw, exp, target, off, got 'nope'"),
        ({"profile": {"a": 1}}, "caw_profile must be one of"),
        ({"extra_args": {"caw_key": "house"}}, "vllm_xargs must name caw_profile or nothing of caw, got 'caw_key'"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be a number in"),
        ({"thinking_token_budget": 5}, "thinking_token_budget must be None"),
        ({"trace_decode_token_ids": [5]}, "trace_decode_token_ids must be None"),
        ({"max_tokens": 1, "logprobs": 4}, "must not be a step of a beam search"),
        ({"temperature": 1.0, "seed": -4}, "seed must be an integer in"),
        ({"temperature": 1.0, "top_p": "x"}, "top_p must be a number in"),
    ):
        with pytest.raises(ValueError, match=said) as caught:
            vllm.LogitsProcessor.validate_params(parameters(**own))
        assert KEY not in str(caught.value)


def test_requests_that_are_served() -> None:
    for own in ({}, {"profile": "off", "presence_penalty": 1.0}, {"max_tokens": 1}, {"max_tokens": None, "top_k": -1},
                {"logprobs": 5}, {"extra_args": {"of_others": 1}}, {"profile": "exp", **DRAWN}):  # fmt: skip
        vllm.LogitsProcessor.validate_params(parameters(**own))


@pytest.mark.parametrize("version", ["0.31.2", "0.34.0", "1.32.0", "dev"])
def test_another_version_of_vllm(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(sys.modules["vllm"], "__version__", version)
    with pytest.raises(RuntimeError, match=rf"vllm must be >= 0\.32 and < 0\.34, got {version}; install"):
        vllm.LogitsProcessor(engine(), torch.device("cpu"), False)


def test_engines_that_are_refused() -> None:
    for own, said in (
        ({"speculative_config": object()}, "must not have speculative decoding"),
        ({"watermark_config": object()}, "must not have vLLM's own watermark"),
    ):
        with pytest.raises(RuntimeError, match=said):
            vllm.LogitsProcessor(engine(**own), torch.device("cpu"), False)
        embedding = engine()
        embedding.model_config.enable_prompt_embeds = True
        with pytest.raises(RuntimeError, match="must not have prompts as embeddings"):
            vllm.LogitsProcessor(embedding, torch.device("cpu"), False)


def without(name: str) -> dict[str, Any]:
    return {field: value for field, value in FILE.items() if field != name}


def test_files_that_are_refused(installed: Path) -> None:
    for said, message in (
        (without("default"), "the file must have default, keys, profiles and may have opt_out, got"),
        ({**FILE, "opt": 1}, "the file must have"),
        ({**FILE, "default": "nope"}, "default must be one of the profiles"),
        ({**FILE, "default": "off", "opt_out": False}, "default must be one of the profiles"),
        ({**FILE, "opt_out": 1}, "opt_out must be True or False"),
        ({**FILE, "profiles": {"off": PROFILES["kgw"]}}, "none named 'off'"),
        ({**FILE, "profiles": []}, "profiles must be an object"),
        ({**FILE, "profiles": {"a": {"key": "nope"}}}, "profile 'a': key must be a name of keys \\(.*house"),
        ({**FILE, "profiles": {"a": {"key": "house"}}}, "profile 'a': watermark must be given"),
        ({**FILE, "keys": {"house": {"env": "NOWHERE"}}, "profiles": {"kgw": PROFILES["kgw"]}}, "NOWHERE must hold"),
        ({**FILE, "keys": {"house": [1]}, "profiles": {"kgw": PROFILES["kgw"]}}, "a key must be a secret or an object"),
        ({**FILE, "profiles": {"kgw": {**PROFILES["kgw"], "watermark": {"name": "x"}}}}, "watermark must have a name"),
        ({**FILE, "profiles": {"kgw": {**PROFILES["kgw"], "watermark": {"name": "kgw", "dleta": 1}}}}, "dleta"),
        ({**FILE, "profiles": {"kgw": {**PROFILES["kgw"], "policy": {"name": "x"}}}}, "policy must have a name of"),
        ({**FILE, "profiles": {"kgw": {**PROFILES["kgw"], "policy": {"name": "fixed", "x": 1}}}}, "no parameter 'x'"),
    ):
        installed.write_text(json.dumps(said))
        with pytest.raises(ValueError, match=message) as caught:
            vllm.LogitsProcessor(engine(), torch.device("cpu"), False)
        assert str(installed) in str(caught.value) and KEY not in str(caught.value) and "\n" not in str(caught.value)


def test_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CAW_VLLM_CONFIG", str(tmp_path / "none.json"))
    with pytest.raises(ValueError, match=r"expected the file of keys and profiles at .*, found none"):
        vllm.LogitsProcessor.validate_params(parameters())
    monkeypatch.delenv("CAW_VLLM_CONFIG")
    with pytest.raises(ValueError, match="CAW_VLLM_CONFIG must name the file of keys and profiles, it is not set"):
        vllm.LogitsProcessor.validate_params(parameters())


def test_a_policy_that_reads_the_next_position_is_said_at_start(installed: Path) -> None:
    said = {**PROFILES["kgw"], "policy": {"name": "capacity", "evaluator": "smollm2-135m"}}
    installed.write_text(json.dumps({**FILE, "profiles": {"kgw": said}}))
    with pytest.raises(ValueError, match="must not read the next position"):
        vllm.LogitsProcessor(engine(), torch.device("cpu"), False)


@pytest.mark.parametrize("window", [(0, 0), (1, 0)])
def test_v1_an_evaluator_of_what_an_engine_knows(llama: Any, installed: Path, window: tuple[int, int]) -> None:
    """A prompt of one token has no position before, here and in `generate`; of others the engine does not show it."""
    path, network = installed.parent / "own.safetensors", spread_evaluator(llama, *window)
    network.save(path)
    said = {"name": "capacity", "evaluator": str(path), "theta": 0.8, "beta": 1.5}
    installed.write_text(json.dumps({**FILE, "profiles": {"kgw": {**PROFILES["kgw"], "policy": said}}}))
    runner = V1(llama)
    assert [chooser.history for chooser in choosers(runner.processor)] == [window[0]]
    for ids in ([5], [60], PROMPTS[0]):
        request = runner.add(parameters(profile="kgw"), ids)
        for _ in range(14):
            runner.step()
        runner.remove(request, condense=True)
        expected = caw.generate(
            llama, tokenizer(), [ids], watermark=caw.KGW(KEY, delta=3.0), max_new_tokens=14,
            policy=caw.CapacityPolicy(network, 0.8, 1.5), return_trace=True,
        )  # fmt: skip
        if len(ids) == 1 or not window[0]:
            made = expected.sequences[0]
            assert request.output[: len(made)] == made
            assert 0 < sum(choice > 0 for choice in expected.trace[0].choice) < len(made)
        else:
            assert len(request.output) == 14


def test_v1_a_universal_evaluator_reads_the_engines_tokenizer(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {**PROFILES["kgw"], "policy": {"name": "capacity", "evaluator": "universal-window00"}}
    installed.write_text(json.dumps({**FILE, "profiles": {"kgw": said}}))
    with pytest.raises(ValueError, match="needs the token classes of the model's tokenizer"):
        vllm.LogitsProcessor(engine(), torch.device("cpu"), False)
    words, asked, config = tiny_tokenizer(), list[tuple[Any, ...]](), engine()
    monkeypatch.setattr(engine_texts, "load_tokenizer", lambda *given: asked.append(given) or words)
    config.model_config.tokenizer, config.model_config.tokenizer_revision = "owner/name", "a1b2c3"
    [chooser] = choosers(vllm.LogitsProcessor(config, torch.device("cpu"), False))
    expected = caw.CapacityPolicy("universal-window00").serving(words).network.token_class
    assert isinstance(chooser.policy, caw.CapacityPolicy) and chooser.history == 0
    assert torch.equal(chooser.policy.network.token_class, expected)  # type: ignore[arg-type]
    assert asked == [("owner/name", "a1b2c3")]


def test_the_file_of_the_page(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
    installed.write_text(page.split("```json\n")[1].split("```")[0])
    monkeypatch.setenv("HOUSE_KEY", KEY)
    processor = vllm.LogitsProcessor(engine(), torch.device("cpu"), False)
    processor.validate_params(parameters(profile="until-detectable"))
    assert choosers(processor)[1].policy.target.p_value == 0.001
    assert load(installed).profiles["recommended"].watermark == caw.Recommended(KEY)
    with pytest.raises(ValueError, match="must be one of recommended, until-detectable, got 'off'"):
        processor.validate_params(parameters(profile="off"))
