"""Whether and how the texts of a request are marked: all of them, but for what the operator has exempted."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from caw.detection.many_keys import alone
from caw.policies import Policy
from caw.policies.target import read_target
from caw.serve.contracts import Tenant
from caw.serve.errors import FORBIDDEN, ApiError
from caw.serve.settings import ServerSettings

OPTED_OUT, SHORT, JSON = "the client opted out", "below the exempted length", "JSON mode is exempted"
TOOLS = "tool calls are exempted"


@dataclass(frozen=True)
class Marking:
    """How one request's texts are marked.

    key_id: of the key that marks, "" where nothing does. unmarked: why not, "" where something does. factor: of the
    policy's strength, 0 where nothing marks. margin: added to the z that the policy's target takes.
    found_at: p-value that the finished texts are tested at under their key, None = no test. strict: whether no other
    text may leave. thinks: whether thinking sections are left unmarked.
    """

    key_id: str
    unmarked: str
    factor: float
    margin: float
    found_at: float | None
    strict: bool
    thinks: bool

    @property
    def marked(self) -> bool:
        return not self.unmarked


def marking_of(
    tenant: Tenant,
    settings: ServerSettings,
    policy: Policy,
    *,
    max_tokens: int,
    wants: bool | None,
    json: bool = False,
    tools: bool = False,
) -> Marking:
    """What is done for a request.

    The level of the tenant's rules is one over all keys that detection tries; what a text has to reach under its own is
    so much less.

    max_tokens: the most new tokens of each text. wants: what the client says, None = nothing. json: whether the texts
    are made in JSON mode. tools: whether they are calls.

    Raises ApiError where the tenant may not have what the client wants, and where the server was planned for less than
    the tenant's rules ask for.
    """
    rules = tenant.rules or settings.rules
    if wants is False and not tenant.may_opt_out:
        raise ApiError(
            FORBIDDEN, "unmarked text needs an API key that may opt out, this one may not; leave watermark out",
            parameter="watermark",
        )  # fmt: skip
    if wants is False:
        return Marking("", OPTED_OUT, 0.0, 0.0, None, False, False)
    if max_tokens < rules.exempt_below and wants is not True:
        return Marking("", SHORT, 0.0, 0.0, None, False, False)
    if json and rules.exempt_json and wants is not True:
        return Marking("", JSON, 0.0, 0.0, None, False, False)
    if tools and rules.exempt_tools and wants is not True:
        return Marking("", TOOLS, 0.0, 0.0, None, False, False)
    if rules.strength_factor > settings.max_factor:
        raise ApiError(500, "the marks asked for this API key are stronger than this server's; ask its operator")
    level = None if rules.found_at is None else alone(rules.found_at, tenant.tried)
    return Marking(
        tenant.key.id,
        "",
        rules.strength_factor,
        _margin(level, policy),
        level,
        rules.strict,
        rules.exempt_thinking
        and not (json or tools),  # JSON begins at once, in whatever section the template has opened
    )


def _margin(level: float | None, policy: Policy) -> float:
    """What a level stricter than the policy's target adds to the z at which marks rest."""
    target = read_target(policy.target)
    if target is None or level is None:
        return 0.0
    return max(0.0, -NormalDist().inv_cdf(level) - target.quantile)
