"""`caw serve`: an OpenAI-compatible server that watermarks every response, and checks on who can reach it."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.cli import options as opt
from caw.cli.command import command, options_of
from caw.cli.errors import user_errors
from caw.cli.options import panel
from caw.cli.place import Place
from caw.cli.policy_choice import OTHERS, RACED, choose_policy, choose_watermark, recommended_of, what_marks
from caw.cli.profile import Profile, check_profile
from caw.cli.registry_options import RegistryUrl, opened
from caw.flags import SERVING
from caw.io.files import check_paths
from caw.io.progress import doing
from caw.requirements import require
from caw.serve.contracts import MarkRules
from caw.serve.settings import ServerSettings
from caw.settings import Settings
from caw.watermarks.keys import parse_key

if TYPE_CHECKING:
    from caw.registry import Registry
    from caw.serve.contracts import ReceiptLog
    from caw.watermarks import Signature

DRAWS = "it draws greedy requests too, at temperature 1; --watermark recommended marks them without drawing"
ONLY = "default"  # id of the tenant where there is no registry

WatermarkName = Annotated[
    str | None,
    panel(opt.MARK, "Watermark [the registry keys' watermark; recommended; kgw if a policy or its option is given].",
          "--watermark",
          metavar="|".join(opt.WATERMARKS)),
]  # fmt: skip
Name = Annotated[str | None, panel(SERVING, "Model name in the API [the value of --model].", "--name")]
Receipts = Annotated[Path | None, panel(SERVING, "JSONL file for receipts; texts are never stored.", "--receipts")]
KEPT = "Keep sketches by which edited texts find their receipts in the registry."
Sketches = Annotated[bool, panel(SERVING, KEPT, "--sketches/--no-sketches")]

OF_SERVER = options_of(ServerSettings, max_factor=4.0)
RULES = {name: option for name, option in options_of(MarkRules).items() if name != "strength_factor"}


def check_access(settings: ServerSettings, key: str | None) -> None:
    """Raise ValueError if a server without API keys could be reached from outside, or if nothing marks."""
    if settings.proxies:
        raise ValueError("a server without a registry accepts only local connections, got --proxy; leave it out or "
        "give --registry")  # fmt: skip
    if not settings.local:
        raise ValueError(
            "a server without a registry accepts only local connections, got another --host; leave it out or give "
            "--registry"
        )
    if key is None:
        raise ValueError("the server requires a marking key, got none; set CAW_KEY or give --key")


def check_registry(key: str | None, receipts: Path | None) -> str:
    """Return a placeholder for the key that a registry has. ValueError for options that the registry replaces."""
    for option, given in (("--key or CAW_KEY", key), ("--receipts", receipts)):
        if given is not None:
            raise ValueError(f"a registry stores keys and receipts, got {option} as well; leave it out")
    return str(secrets.randbits(63))


def tell_sampling(model: Any, sampling: str) -> None:
    """Print the default sampling of requests. sampling: of `ServerSettings`."""
    from caw.models.sampling import model_sampling, sampling_text

    suggested = f"the model's generation config has {sampling_text(model_sampling(model))}"
    if sampling == "model":
        tell(f"default sampling of requests: {suggested}")
    else:
        tell(f"default sampling of requests: temperature 1; {suggested}, see --sampling")


def watermark_of(
    found: Registry | None, name: str | None, key: str, options: dict[str, Any], policy: str | None,
    of_policy: dict[str, Any],
) -> Signature:  # fmt: skip
    """Return the watermark asked for, the registry's, or the default. ValueError for none, and beside another's key."""
    asked = name is not None or any(value is not None for value in options.values())
    mark = opt.build_watermark(choose_watermark(name, options, policy, of_policy), key, options)
    if mark is None:
        raise ValueError("the server marks every response, got --watermark none; choose another")
    if found is None:
        return mark
    from caw.registry.agreement import watermark_for

    mark, remarks = watermark_for(found, mark, asked=asked)
    for remark in remarks:
        tell(remark)
    return mark


def tell(line: str) -> None:
    typer.echo(f"caw: {line}", err=True)


@command(
    "model profile host port sampling detectable-at receipts registry watermark key batch-size max-length quantization "
    "device",
    of_server=OF_SERVER,
    rules=RULES,
    of_mark={**opt.OF_TEST, **opt.OF_STRENGTH},
    of_policy=opt.OF_POLICY,
    running=options_of(Settings, "max_memory", "compile"),
)
def serve(
    *,
    model: opt.ModelName,
    profile: Profile = None,
    name: Name = None,
    of_server: dict[str, Any],
    rules: dict[str, Any],
    receipts: Receipts = None,
    registry: RegistryUrl = None,
    sketches: Sketches = True,
    watermark: WatermarkName = None,
    key: opt.Key = None,
    of_mark: dict[str, Any],
    policy: opt.PolicyName = None,
    of_policy: dict[str, Any],
    running: dict[str, Any],
    place: Place,
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
    - caw serve --model smollm2-135m --profile eu --registry sqlite:///keys.db
    """
    with user_errors():
        require("fastapi", "`caw serve`")
        require("jinja2", "its page")
        from caw.policies.mark import Mark
        from caw.serve.contracts import LEVEL, MarkKey, MarkRules, SingleTenant, Tenant
        from caw.serve.receipt_files import JsonlReceipts, NoReceipts
        from caw.serve.settings import ServerSettings

        check_paths({"--model": model, "--evaluator": of_policy["evaluator"]}, {})
        of_server["proxies"] = tuple(of_server["proxies"] or ())
        settings = ServerSettings(name=name or Path(model).name, rules=MarkRules(**rules), **of_server)
        level = settings.rules.detectable_at
        if registry is None:
            check_access(settings, key)
        else:
            key = check_registry(key, receipts)
        settings.signer()  # in one sentence now rather than once the model is loaded
        kept = None if registry is None else opened(registry)
        if profile is not None:
            check_profile(profile, kept)
        assert key is not None
        mark = watermark_of(kept, watermark, key, of_mark, policy, of_policy)
        if len(mark.parts) > 1:
            how = None
            mark, _, marking = recommended_of(mark, policy, of_policy, level, [RACED, OTHERS])
        else:
            [lone] = mark.parts
            chosen, remark = choose_policy(policy, of_policy, model, marked=True, races=lone.races_whole)
            how = opt.build_policy(chosen, of_policy, model)
            marking = what_marks(lone, how, remark or (DRAWS if Mark(lone, how).races else ""))
        tell(marking)
        device = place.prepare(model)
        log: ReceiptLog = NoReceipts() if receipts is None else JsonlReceipts(receipts)
        if kept is not None:
            log = kept.receipts
        log.check()
        if still := log.resume():
            tell(f"{still} receipts are open: their texts were lost in a crash, or another server is "
                         "generating them now")  # fmt: skip
        secret = None if kept is None else kept.secret  # and its tables, before the model is loaded
        sketch = kept.sketcher() if kept is not None and sketches else None
        if level is not None and level > LEVEL:  # a text that passes the test here may not be called marked there
            tell(f"--detectable-at {level:g} is above {LEVEL:g}, the threshold of this server's own detection")
        from caw.serve.planning import Planned
        from caw.serve.running import server_for
        from caw.serve.service import Service

        with doing(f"loading {model}"):
            loaded, tokenizer = place.load(model, device)
            tell_sampling(loaded, settings.sampling)
            planned = Planned(loaded, tokenizer, mark, how, settings, **running)
        single = Tenant(ONLY, MarkKey(mark.key_id, parse_key(key)), settings.rules)
        directory = SingleTenant(single) if kept is None else kept.directory
        service = Service(planned, directory, log, secret, sketch)
        # scripts that start a server wait for "listening at URL"
        server_for(service, lambda where: tell(f"listening at {where}")).run()
