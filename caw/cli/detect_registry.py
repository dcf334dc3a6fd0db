"""`caw detect --registry`: test texts under all keys of a registry; each key stores its own watermark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from caw.cli.detect_output import Item
from caw.cli.detect_receipts import read_tests, repeat
from caw.cli.errors import complain
from caw.cli.options import panel
from caw.cli.registry_options import URL_HELP, opened
from caw.io.show import format_p

if TYPE_CHECKING:
    from caw.detection.many_keys import KeySearch, KeySearchResult
    from caw.watermarks import Signature

KEYS = "Keys of a service"
FPR = 1e-3
CLOSE = "Close to receipt {receipt} of {tenant}, about {share:.0%} of its shingles."
# not CAW_REGISTRY: whoever keeps a registry tests texts under other keys, too
RegistryUrl = Annotated[
    str | None, panel(KEYS, f"Test under the marking keys of this registry: {URL_HELP}", "--registry", metavar="URL")
]
Tenant = Annotated[
    str | None, panel(KEYS, "Use only this tenant's keys, including retired ones [all tenants].", "--tenant")
]


def watermarks(
    url: str | None, tenant: str | None
) -> tuple[dict[str, Signature], Callable[[str], list[dict[str, Any]]]]:
    """Return (watermarks of a registry or a tenant by key id, what finds the receipts close to a text)."""
    registry = opened(url)
    return registry.marking.watermarks(tenant), partial(registry.near, tenant=tenant)


def test(
    marks: Mapping[str, Signature], items: Sequence[Item], tokenizer: Any, how: dict[str, Any], prefix: str,
    receipt: str | None, near: Callable[[str], list[dict[str, Any]]], *, as_json: bool, single: bool,
) -> int:  # fmt: skip
    """Test under all keys, or those of receipts; return how many were not tested. how: options, None = not given."""
    if receipt is not None:
        return repeat(read_tests(receipt), items, marks, tokenizer, prefix, how, as_json=as_json, single=single)
    from caw.detection.many_keys import KeySearch

    keys = KeySearch(tokenizer, marks, how["fpr"] or FPR, normalize=how["normalize"] or (), prefix=prefix)
    found, bad = [], 0
    for item, result in _results(keys, items):
        close = near(item.content) if isinstance(item.content, str) else []
        if isinstance(result, str):
            bad += 1
            complain(item.said(result, single=single))
        elif as_json:
            print(json.dumps(_line(item, result) | {"close": close}), flush=True)
        else:
            found.append((item, result, close))
    if single:
        for _, result, close in found:
            print(" ".join([result.message, *(CLOSE.format(**each) for each in close)]))
    elif found:
        _show(found)
    return bad


def _results(keys: KeySearch, items: Sequence[Item]) -> Iterator[tuple[Item, KeySearchResult | str]]:
    for item in items:
        try:
            result = keys(item.content)
        except (TypeError, ValueError) as error:
            yield item, str(error)
            continue
        assert not isinstance(result, list)
        yield item, result.error or result


def _line(item: Item, result: KeySearchResult) -> dict[str, Any]:
    matches = [
        {"key_id": name, "watermark": own.watermark, "p_value": float(own.p_value), "scored": own.num_scored}
        for name, own in result.results.items()
    ]
    return {
        "id": item.id, "is_watermarked": result.is_watermarked, "is_undecided": result.is_undecided,
        "p_value": result.p_value, "fpr": result.fpr, "keys": len(result.p_values), "tokens": result.tokens,
        "matches": matches, "message": result.message, **item.told,
    }  # fmt: skip


def _show(found: Sequence[tuple[Item, KeySearchResult, list[dict[str, Any]]]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from caw.io.show import visible

    table = Table("id", "watermarked", "corrected p-value", "keys", "tokens", "close to receipt")
    for item, result, close in found:
        verdict = "[green]yes[/]" if result.is_watermarked else "too short" if result.is_undecided else "no"
        near = ", ".join(f"{each['receipt']} ({each['share']:.0%})" for each in close[:1])
        row = format_p(result.p_value), ", ".join(result.matches), str(result.tokens), near
        table.add_row(Text(visible(str(item.id))), verdict, *row)
    console = Console()
    console.print(table)
    marked, first = sum(result.is_watermarked for _, result, _ in found), found[0][1]
    said = f"{marked} of {len(found)} texts are watermarked at a false-positive rate of {first.fpr:g} for each text"
    console.print(f"{said}, corrected for all {len(first.p_values)} keys", highlight=False)
