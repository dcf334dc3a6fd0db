"""What is in deploy/: commands that the program takes, metrics that the server has, files that programs accept."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from docs.test_shell_blocks import parsed

FOLDER = Path(__file__).resolve().parents[1] / "deploy"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
MANIFESTS = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
[CONTAINER] = MANIFESTS[0]["spec"]["template"]["spec"]["containers"]
UNIT = (FOLDER / "caw.service").read_text()


def commands() -> list[list[str]]:
    [image] = re.findall(r"^CMD (\[.*\])$", (FOLDER / "Containerfile").read_text(), re.MULTILINE)
    [started] = re.findall(r"^ExecStart=/opt/caw/bin/(.*)$", UNIT, re.MULTILINE)
    heads = [*re.findall(r"\bcaw (keys [a-z -]+?)(?:\s\s|\)|$)", (FOLDER / "compose.yaml").read_text(), re.MULTILINE)]
    return [json.loads(image), shlex.split(COMPOSE["services"]["caw"]["command"]), CONTAINER["args"],
            shlex.split(started)[1:], *map(shlex.split, heads)]  # fmt: skip


def test_commands_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAW_REGISTRY", "sqlite:///keys.db")
    shown = commands()
    assert len(shown) == 7 and [words[0] for words in shown] == 4 * ["serve"] + 3 * ["keys"]
    assert not [complaint for words in shown if (complaint := parsed(["caw", *words])[0])]


def test_probes_ask_paths_of_the_server() -> None:
    source = (FOLDER.parent / "caw" / "serve" / "app.py").read_text(encoding="utf-8")
    probes = [CONTAINER[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert probes == ["/metrics", "/health", "/metrics"] and all(f'@app.get("{path}")' in source for path in probes)
    assert "http://127.0.0.1:8000/health" in COMPOSE["services"]["caw"]["healthcheck"]["test"][-1]


def test_rules_and_board_know_the_metrics() -> None:
    pytest.importorskip("prometheus_client")
    from caw.serve.metrics import Metrics

    engine: Any = SimpleNamespace(active=0, reading=0, waiting=0, tokens=0)
    metrics = Metrics(engine)
    have = {"up"}
    for family in metrics.registry.collect():
        endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}[family.type]
        have |= {family.name + ending for ending in endings}
    rules = [rule["expr"] for group in yaml.safe_load((FOLDER / "prometheus-rules.yaml").read_text())["groups"]
             for rule in group["rules"]]  # fmt: skip
    panels = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    asked = [*rules, *(target["expr"] for panel in panels for target in panel["targets"])]
    named = set(re.findall(r"\bcaw_\w+", " ".join(asked)))
    assert len(asked) > 15 and named <= have
    assert {name.removesuffix("_total").removesuffix("_bucket") for name in named} == {
        family.name for family in metrics.registry.collect()
    }


def test_containers_share_one_user_and_port() -> None:
    text = (FOLDER / "Containerfile").read_text()
    assert "--uid 10001" in text and MANIFESTS[0]["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == 10001
    assert "EXPOSE 8000" in text and CONTAINER["ports"][0]["containerPort"] == 8000
    extras = re.findall(r"\.\[([a-z,]+)\]", text)[0].split(",")
    project = (FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert all(re.search(rf"^{extra} = ", project, re.MULTILINE) for extra in extras)


def test_manifests_follow_their_schemas() -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    for manifest in MANIFESTS:
        validate(manifest, "1.31", strict=True)


@pytest.mark.parametrize("command", [
    ["systemd-analyze", "verify", "--man=no", "UNIT"],
    ["promtool", "check", "rules", str(FOLDER / "prometheus-rules.yaml")],
    ["docker", "compose", "-f", str(FOLDER / "compose.yaml"), "config", "-q"],
], ids=lambda command: command[0])  # fmt: skip
def test_their_programs_accept_them(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}")
    if command[1] == "compose" and subprocess.run([*command[:2], "version"], capture_output=True).returncode:
        pytest.skip("needs docker's plug-in for compose")
    for name in ("CAW_MASTER_KEY", "PGPASSWORD"):
        monkeypatch.setenv(name, "x")
    unit = tmp_path / "caw.service"
    unit.write_text(UNIT.replace("/opt/caw/bin/caw", shutil.which("true") or "/bin/true"))
    done = subprocess.run([str(unit) if word == "UNIT" else word for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
