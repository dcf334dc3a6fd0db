"""A real vLLM with the demo model on a CPU: server and engine give the tokens of `caw.generate`, come what may.

The environment is made for it (CAW_VLLM_PYTHON names one to keep). All is float32, where tokens are comparable.
"""

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from integrations.vllm_environment import CASES, KEY, LONGEST, NEXT, ROOT, Environment, generated, installed, mark_of

import caw
from caw.models.facts import ModelFacts

EVERYDAY = ROOT / "caw_lab" / "training" / "everyday_prompts.jsonl"
PROMPTS = [json.loads(line)["prompt"] for line in EVERYDAY.open()][:20]
ENOUGH = 50  # tokens that count; a text that loops has fewer, and is found in no engine
pytestmark = [pytest.mark.gate("vllm"), pytest.mark.timeout(3000)]


class Expected:
    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer, self._made = model, tokenizer, dict[str, list[list[int]]]()
        self.ends = list(ModelFacts.of(model, tokenizer).ends)
        self.prompts = [
            tokenizer(
                tokenizer.apply_chat_template(conversation(text), add_generation_prompt=True, tokenize=False),
                add_special_tokens=False,
            ).input_ids
            for text in PROMPTS
        ]

    def of(self, case: str) -> list[list[int]]:
        if case not in self._made:
            self._made[case] = generated(self.model, self.tokenizer, self.prompts, case).sequences
        return self._made[case]


def conversation(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def expected(demo: tuple[Any, Any], environment: Environment) -> Expected:
    model, tokenizer = caw.load_model(str(environment.model), dtype="float32")  # its folder names no evaluator
    return Expected(model, tokenizer)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, demo: tuple[Any, Any]) -> Iterator[Environment]:
    folder = tmp_path_factory.mktemp("vllm")
    model = folder / "model"
    for part in demo:
        part.save_pretrained(model)
    with installed(folder) as python:
        yield Environment(python, folder, model)


class Server:
    def __init__(self, url: str, expected: Expected) -> None:
        self.expected = expected
        self.client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=600)

    def ask(self, number: int, profile: str | None, sampling: dict[str, Any], **more: Any) -> Any:
        own = {"temperature": 0, "max_tokens": LONGEST, **sampling, **more}
        body = {name: own.pop(name) for name in ("top_k", "min_p", "repetition_penalty") if name in own}
        arguments = {} if profile is None else {"vllm_xargs": {"caw_profile": profile}}
        extra = {**arguments, **body, "return_token_ids": True, "stop_token_ids": self.expected.ends}
        extra |= own.pop("extra", {})
        return self.client.chat.completions.create(
            model="MODEL", messages=conversation(PROMPTS[number]), extra_body=extra, **own
        )

    def case(self, number: int, case: str) -> list[int]:
        profile, sampling = CASES[case]
        answer = self.ask(number, profile, sampling)
        assert answer.prompt_token_ids == self.expected.prompts[number]
        return list(answer.choices[0].token_ids)


@pytest.fixture(scope="module")
def server(environment: Environment, expected: Expected) -> Iterator[Server]:
    with environment.server() as url:
        yield Server(url, expected)


def compare(made: list[list[int]], wanted: list[list[int]], what: str) -> None:
    pairs = zip(made, wanted, strict=True)
    first = {
        number: next(at for at, (a, b) in enumerate(zip([*one, -1], [*other, -1], strict=False)) if a != b)
        for number, (one, other) in enumerate(pairs)
        if one != other
    }
    print(f"{what}: {len(made) - len(first)} of {len(made)} texts equal, {sum(map(len, made))} tokens")
    assert not first, f"{what}: text -> first different token {first}"


@pytest.mark.parametrize("case", CASES)
def test_the_server_gives_the_tokens_of_generate_and_the_mark_is_found(server: Server, case: str) -> None:
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda number: server.case(number, case), range(len(PROMPTS))))
    expected = server.expected
    compare(made, expected.of(case), case)
    watermark, _ = mark_of(CASES[case][0])
    texts = [expected.tokenizer.decode(ids, skip_special_tokens=True) for ids in made]
    found = [caw.detect(text, expected.tokenizer, watermark) for text in texts]
    lost = {number: (r.p_value, r.num_scored) for number, r in enumerate(found) if not r.is_watermarked}
    print(
        f"{case}: found {len(found) - len(lost)} of {len(found)}, text -> (p, tokens that count) of the others: {lost}"
    )
    assert all(counted < ENOUGH for _, counted in lost.values()), lost


def test_requests_of_all_settings_in_one_batch(server: Server) -> None:
    jobs = [(number, case) for number in range(4) for case in CASES]
    with ThreadPoolExecutor(17) as pool:
        unmarked = pool.submit(server.ask, 0, "off", {})
        made = list(pool.map(lambda job: server.case(*job), jobs))
    compare(made, [server.expected.of(case)[number] for number, case in jobs], "mixed")
    plain = caw.generate(server.expected.model, server.expected.tokenizer, [server.expected.prompts[0]],
                         max_new_tokens=LONGEST, progress=False)  # fmt: skip
    assert list(unmarked.result().choices[0].token_ids) == plain.sequences[0]


def test_a_json_schema_holds_and_the_mark_is_in_its_words(server: Server) -> None:
    """The schema does not say that it is closed; the white space is the unmarked text's."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
              "required": ["name", "age"]}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    contents = [
        server.ask(0, profile, {}, response_format=form, max_tokens=60).choices[0].message.content
        for profile in ("kgw", "off")
    ]
    assert contents[0] != contents[1]
    assert all(set(json.loads(content)) == {"name", "age"} for content in contents)
    one, other = (re.sub(r'"[^"]*"|\S', "", content) for content in contents)
    assert one == other, contents


def test_answers_and_the_log_say_who_is_marked(server: Server, environment: Environment) -> None:
    create = server.client.chat.completions.with_raw_response.create
    for name, stream in (("off", False), ("race", True)):
        answer = create(model="MODEL", messages=conversation("Hi"), max_tokens=1, stream=stream,
                        extra_body={"vllm_xargs": {"caw_profile": name}})  # fmt: skip
        assert answer.headers["caw-profile"] == name
    assert "caw marks by kgw (kgw, key " in (environment.folder / "server.log").read_text()


def test_the_loaders_of_the_next_version_take_the_processor(environment: Environment) -> None:
    """Its wheel is for GPUs: its Python alone, on the packages of the version before."""
    wheels, files = environment.folder / "wheels", environment.folder / "next"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), NEXT]
    subprocess.run(pip, check=True, capture_output=True)
    for wheel in wheels.iterdir():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(files, [name for name in archive.namelist() if not name.endswith(".so")])
    script = Path(__file__).with_name("vllm_loaders.py")
    command = [str(environment.python), str(script), str(files)]
    done = subprocess.run(command, cwd=environment.folder, env=environment.variables(), capture_output=True, text=True)
    said = f"{NEXT.partition('==')[2]} caw_profile must be one of kgw\n"
    assert done.stdout == 2 * said, done.stdout + done.stderr[-4000:]


def of_engine(expected: Expected, *cases: str) -> dict[str, Any]:
    runs = {}
    for case in cases:
        profile, sampling = CASES[case]
        own = {"temperature": 0, **sampling, "max_tokens": LONGEST, "stop_token_ids": expected.ends}
        runs[case] = {"ids": expected.prompts, "sampling": {**own, "extra_args": {"caw_profile": profile}}}
    return {"runs": runs}


def test_texts_that_are_preempted_go_on(environment: Environment, expected: Expected) -> None:
    """The cache holds a few texts: others are thrown out and computed again."""
    cases = ["kgw drawn", "exp", "race drawn", "target"]
    small = 24 * 128 * 30 * 2 * 3 * 64 * 4
    found = environment.engine(of_engine(expected, *cases), kv_cache_memory_bytes=small, enable_prefix_caching=False)
    assert "refused" not in found, found
    for case in cases:
        compare(found["runs"][case]["tokens"], expected.of(case), f"preempted, {case}")
    print(f"{found['preempted']:.0f} preemptions, {found['resumed']} texts came back with ids")
    assert found["preempted"] > 10 and found["resumed"] > 10


def test_prompts_that_are_read_in_chunks(environment: Environment, expected: Expected) -> None:
    """Of 16 tokens a step; vLLM itself dies of a seed there on a CPU, so these are greedy."""
    cases = ["kgw", "exp", "target", "recommended"]
    found = environment.engine(of_engine(expected, *cases), max_num_batched_tokens=16, max_num_seqs=8)
    assert "refused" not in found, found
    for case in cases:
        compare(found["runs"][case]["tokens"], expected.of(case), f"chunks, {case}")
    print(f"{found['chunks']} choices thrown away")
    assert found["chunks"] > 20


def test_vllms_own_detector_reads_the_race(environment: Environment, expected: Expected) -> None:
    texts = expected.of("race drawn")
    found = environment.engine({"detector": {"key": KEY, "ids": texts}})["p_values"]
    ours = [caw.detect(ids, None, mark_of("race")[0]).p_value for ids in texts]
    print("p by vLLM over p by caw:", [round(a / b, 6) for a, b in zip(found, ours, strict=True)])
    assert found == pytest.approx(ours, rel=1e-3) and max(found) < 1e-3


def test_the_example_of_the_page(environment: Environment, expected: Expected) -> None:
    page = Path(ROOT / "docs" / "engines.md").read_text(encoding="utf-8").split("## vLLM")[1]
    request = page.split("```python\n")[1].split("```")[0]
    said = page.split("```json\n")[1].split("```")[0]
    assert "logits-processors caw.integrations.vllm:LogitsProcessor" in page
    with environment.server(marks=json.loads(said), key="the text of HOUSE_KEY") as url:
        request = request.replace("http://127.0.0.1:8000/v1", url)
        names: dict[str, Any] = {"caw": caw, "tokenizer": expected.tokenizer}
        exec(request, names)
    assert names["result"].is_watermarked, names["result"]
