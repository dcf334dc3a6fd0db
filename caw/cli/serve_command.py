"""`caw serve`: an OpenAI-compatible server that watermarks every response."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from caw.cli import options as opt
from caw.cli import serve_options as serving
from caw.cli.command import command, options_of
from caw.cli.errors import user_errors
from caw.cli.place import Place
from caw.cli.policy_choice import OTHERS, RACED, choose_policy, recommended_of, what_marks
from caw.cli.registry_options import RegistryUrl, opened
from caw.io.files import check_paths
from caw.io.progress import doing
from caw.requirements import require
from caw.settings import Settings
from caw.watermarks.keys import parse_key

if TYPE_CHECKING:
    from caw.serve.contracts import ReceiptLog


@command(
    "model host port sampling detectable-at receipts registry watermark key batch-size max-length quantization device",
    of_server=serving.OF_SERVER,
    rules=serving.RULES,
    of_mark={**opt.OF_TEST, **opt.OF_STRENGTH},
    of_policy=opt.OF_POLICY,
    running=options_of(Settings, "max_memory", "compile"),
)
def serve(
    *,
    model: opt.ModelName,
    name: serving.Name = None,
    of_server: dict[str, Any],
    rules: dict[str, Any],
    receipts: serving.Receipts = None,
    registry: RegistryUrl = None,
    watermark: serving.WatermarkName = None,
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
        level = settings.rules.level
        if registry is None:
            serving.check_access(settings, key)
        else:
            key = serving.check_registry(key, receipts)
        kept = None if registry is None else opened(registry)
        assert key is not None
        mark = serving.watermark_of(kept, watermark, key, of_mark, policy, of_policy)
        if len(mark.parts) > 1:
            how = None
            mark, _, marking = recommended_of(mark, policy, of_policy, level, [RACED, OTHERS])
        else:
            [lone] = mark.parts
            chosen, remark = choose_policy(policy, of_policy, model, marked=True, races=lone.races_whole)
            how = opt.build_policy(chosen, of_policy, model)
            marking = what_marks(lone, how, remark or (serving.DRAWS if Mark(lone, how).races else ""))
        serving.tell(marking)
        device = place.prepare(model)
        log: ReceiptLog = NoReceipts() if receipts is None else JsonlReceipts(receipts)
        if kept is not None:
            log = kept.receipts
        log.check()
        if still := log.resume():
            serving.tell(f"{still} receipts are open: their texts were lost in a crash, or another server is "
                         "generating them now")  # fmt: skip
        if level is not None and level > LEVEL:  # a text that passes the test here may not be called marked there
            serving.tell(f"--detectable-at {level:g} is above {LEVEL:g}, the threshold of this server's own detection")
        from caw.serve.planning import Planned
        from caw.serve.running import server_for
        from caw.serve.service import Service

        with doing(f"loading {model}"):
            loaded, tokenizer = place.load(model, device)
            serving.tell_sampling(loaded, settings.sampling)
            planned = Planned(loaded, tokenizer, mark, how, settings, **running)
        single = Tenant(serving.ONLY, MarkKey(mark.key_id, parse_key(key)), settings.rules)
        directory = SingleTenant(single) if kept is None else kept.directory
        service = Service(planned, directory, log, None if kept is None else kept.secret)
        # scripts that start a server wait for "listening at URL"
        server_for(service, lambda where: serving.tell(f"listening at {where}")).run()
