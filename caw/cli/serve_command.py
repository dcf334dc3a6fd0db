"""`caw serve`: an OpenAI-compatible server that watermarks every response."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caw.cli import options as opt
from caw.cli import serve_options as serving
from caw.cli.errors import user_errors
from caw.cli.policy_choice import OTHERS, RACED, choose_policy, recommended_of, what_marks
from caw.cli.quantization_option import Quantized, prepare_place
from caw.cli.registry_options import RegistryUrl, opened
from caw.io.files import check_paths
from caw.io.progress import doing
from caw.models import DEMO_MODEL, load_model
from caw.requirements import require

if TYPE_CHECKING:
    from caw.serve.contracts import ReceiptLog


def serve(
    model: Annotated[str, typer.Option(help=f"{DEMO_MODEL} (the demo model), a .gguf file, a folder or a hub id.")],
    host: serving.Host = "127.0.0.1",
    port: serving.Port = 8000,
    name: serving.Name = None,
    receipts: serving.Receipts = None,
    registry: RegistryUrl = None,
    watermark: serving.WatermarkName = None,
    key: opt.Key = None,
    gamma: opt.Gamma = None,
    delta: opt.Delta = None,
    seeding: opt.Seeding = None,
    context_width: opt.ContextWidth = None,
    format: opt.FormatName = None,
    top_k_exp: opt.TopKExp = None,
    strength_exp: opt.StrengthExp = None,
    free: opt.Free = None,
    subkeys: opt.Subkeys = None,
    policy: opt.PolicyName = None,
    strength: opt.Strength = None,
    nats: opt.Nats = None,
    gap: opt.Gap = None,
    theta: opt.Theta = None,
    beta: opt.Beta = None,
    evaluator: opt.EvaluatorName = None,
    target: opt.TargetP = None,
    detectable_at: serving.DetectableAt = None,
    strict: serving.Strict = False,
    max_attempts: serving.MaxAttempts = 4,
    guard: serving.Guarded = None,
    exempt_below: serving.ExemptBelow = 0,
    exempt_json: serving.ExemptJson = False,
    exempt_tools: serving.ExemptTools = False,
    exempt_thinking: serving.ExemptThinking = False,
    max_factor: serving.MaxFactor = 4.0,
    batch_size: serving.BatchSize = 8,
    max_length: serving.MaxLength = 2048,
    max_waiting: serving.MaxWaiting = 256,
    max_choices: serving.MaxChoices = 16,
    max_connections: serving.MaxConnections = 1000,
    proxy: serving.Proxies = None,
    max_body: serving.MaxBody = 1 << 20,
    timeout: serving.Timeout = 600.0,
    read_timeout: serving.ReadTimeout = 20.0,
    write_timeout: serving.WriteTimeout = 30.0,
    grace: serving.Grace = 30.0,
    max_memory: opt.MaxMemory = None,
    drafts: serving.Drafts = True,
    sampling: serving.Sampling = "openai",
    compile: opt.Compile = False,
    dtype: opt.DType = "auto",
    quantization: Quantized = None,
    device: opt.Device = None,
    threads: opt.Threads = None,
) -> None:
    """Run an OpenAI-compatible server that watermarks every response.

    Paths: /v1/models, /v1/completions, /v1/chat/completions, /health, /metrics. Use any OpenAI client with the base URL
    http://127.0.0.1:8000/v1 and any API key. Greedy responses are marked too, and clients cannot turn the mark off.

    With --registry, clients need an API key from it. Each tenant has its own rules and marking keys, which store their
    watermark, and receipts go to the registry (see `caw keys`). Without it, a single key marks and the server accepts
    only local connections.

    Examples:

    - read -rs CAW_KEY; export CAW_KEY
    - caw serve --model smollm2-135m
    - caw serve --model smollm2-135m --detectable-at 1e-3 --receipts receipts.jsonl
    - caw serve --model smollm2-135m --host 0.0.0.0 --registry sqlite:///keys.db
    """
    with user_errors():
        require("fastapi", "`caw serve`")
        require("jinja2", "its page")
        from caw.guard import read_guard
        from caw.serve.contracts import MarkRules
        from caw.serve.settings import ServerSettings

        check_paths({"--model": model, "--evaluator": evaluator}, {})
        settings = ServerSettings(
            name=name or Path(model).name, host=host, port=port, batch=batch_size, max_length=max_length,
            rules=MarkRules(
                detectable_at=detectable_at, strict=strict, exempt_below=exempt_below, exempt_json=exempt_json,
                exempt_tools=exempt_tools, exempt_thinking=exempt_thinking,
            ), max_waiting=max_waiting, max_connections=max_connections, proxies=tuple(proxy or ()),
            max_choices=max_choices, max_attempts=max_attempts, guard=read_guard(guard), max_factor=max_factor,
            timeout=timeout,
            read_timeout=read_timeout, write_timeout=write_timeout, grace=grace, max_body=max_body,
            drafts=drafts, sampling=sampling,
        )  # fmt: skip
        if registry is None:
            serving.check_access(settings, key)
        else:
            key = serving.check_registry(key, receipts)
        of_mark = {
            "gamma": gamma, "delta": delta, "seeding": seeding, "context-width": context_width, "format": format,
            "top-k-exp": top_k_exp, "strength-exp": strength_exp, "free": free, "subkeys": subkeys,
        }  # fmt: skip
        kept = None if registry is None else opened(registry)
        assert key is not None
        of_policy = {
            "strength": strength, "nats": nats, "gap": gap, "theta": theta, "beta": beta, "evaluator": evaluator,
            "target": target,
        }  # fmt: skip
        mark = serving.watermark_of(kept, watermark, key, of_mark, policy, of_policy)
        if len(mark.parts) > 1:
            how = None
            mark, _, marking = recommended_of(mark, policy, of_policy, model, detectable_at, [RACED, OTHERS])
        else:
            chosen, remark = choose_policy(policy, of_policy, model, marked=True, raced=mark.races_whole)
            how = opt.build_policy(chosen, of_policy, model)
            marking = what_marks(mark, how, remark or serving.race_of_greedy(mark, how))
        serving.tell(marking)
        device = prepare_place(model, device, threads, dtype, quantization)
        log: ReceiptLog = serving.receipt_log(receipts) if kept is None else kept.receipts
        log.check()
        serving.tell_open(log)
        serving.tell_level(detectable_at)
        from caw.serve.planning import Planned

        with doing(f"loading {model}"):
            loaded, tokenizer = load_model(model, device=device, dtype=dtype, quantization=quantization)
            serving.tell_sampling(loaded, sampling)
            planned = Planned(loaded, tokenizer, mark, how, settings, max_memory=max_memory, compile=compile)
        directory = serving.single_tenant(key, mark, settings) if kept is None else kept.directory
        serving.run(planned, directory, log, None if kept is None else kept.secret)
