"""Whether and how a request's texts are marked: all of them, unless the operator exempted some."""

import math
from dataclasses import dataclass

from caw.detection.family import alone, lone_target
from caw.policies import Policy
from caw.policies.target import Target, read_target
from caw.serve.contracts import Tenant
from caw.serve.errors import FORBIDDEN, ApiError
from caw.serve.settings import ServerSettings
from caw.watermarks import Signature, Watermark

# of a text's tokens, those whose whole context the server knows: with fewer, texts of 150 tokens that are put together
# from answers as short are no longer found (docs/serve.md, "Short answers")
WHOLE = 0.75
EVIDENT = 0.01  # p-value at which a text is called marked whatever a client forced
DOUBTFUL, ENOUGH = 0.5, 16  # p-value above which one with as many open positions is not: docs/serve.md, "Short answers"
OPTED_OUT, SHORT, JSON = "the client opted out", "below the exempted length", "JSON mode is exempted"
TOOLS = "tool calls are exempted"


@dataclass(frozen=True)
class Marking:
    """Settings of the mark for one request's texts.

    key_id: of the marking key, "" if unmarked. unmarked: why, "" if marked. factor: of the policy's strength, 0 if
    unmarked. margin: added to the z of the policy's target. level: p-value at which finished texts are tested
    under their key, None = no test. strict: whether to send only detected texts. thinks, spares: whether thinking
    sections, calls within a text are left unmarked. fewest: minimum tokens of a text that is called marked.
    strict_from: minimum tokens of a text that `strict` refuses.
    """

    key_id: str
    unmarked: str
    factor: float
    margin: float
    level: float | None
    strict: bool
    thinks: bool
    fewest: int = 1
    strict_from: int = 0
    spares: bool = False

    @property
    def marked(self) -> bool:
        """Whether texts are marked; for finished texts see `carried`."""
        return not self.unmarked

    def carried(self, tokens: int, open: int, p_value: float | None, *, steered: bool = False) -> bool:
        """Return whether a finished text may be called marked: by its evidence, else by the positions at which the mark
        had a choice.

        In a text with fewer than `fewest`, too many tokens follow a context that the server knows only in part, while a
        reader of the text knows all of it. Tokens that a client forced or a schema dictates are not the mark's, and a
        text that its own detector doubts is not marked.

        open: of its tokens, those that the mark could have chosen otherwise. p_value: under its key, None = unknown.
        steered: whether a client's bias favoured tokens: then evidence alone counts.
        """
        if not self.marked or tokens < self.fewest:
            return False
        if steered or (p_value is not None and p_value <= EVIDENT):
            return p_value is not None and p_value <= EVIDENT
        doubtful = open >= ENOUGH and p_value is not None and p_value > DOUBTFUL
        return open >= self.fewest and not doubtful


def marking_of(
    tenant: Tenant, settings: ServerSettings, policy: Policy, fewest: int = 1, *, parts: int = 1,
    mark: Watermark | None = None, max_tokens: int, wants: bool | None, json: bool = False, tools: bool = False,
    offered: bool = False,
) -> Marking:  # fmt: skip
    """Return how a request is marked.

    The level of the tenant's rules is over all keys that detection tries; a text's level under its own key is
    correspondingly smaller.

    fewest: from `fewest_marked`. parts: families of marks among which detection divides a level. mark: the one
    that marks, whose sub-keys divide it too; None = one without. max_tokens: maximum
    tokens of each text, including what it continues. wants: the client's request, None = none. json: whether the texts
    are in JSON mode. tools: whether they are calls. offered: whether they may have calls.

    Raises ApiError if the tenant may not have what the client requests, and if the tenant's rules exceed the server's
    plan.
    """
    rules = tenant.rules or settings.rules
    if wants is False and not tenant.may_opt_out:
        raise ApiError(
            FORBIDDEN, "unmarked text requires an API key that may opt out; leave watermark out",
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
        raise ApiError(500, "this API key's rules ask for stronger marks than this server supports; ask its operator")
    level = None if rules.detectable_at is None else alone(rules.detectable_at, tenant.tried)
    margin = _margin(None if level is None else alone(level, parts), policy, mark)
    thinks = rules.exempt_thinking and not (json or tools)  # JSON begins at once, whatever the template has opened
    spares = offered and rules.exempt_tools and wants is not True
    return Marking(tenant.key.id, "", rules.strength_factor, margin, level, rules.strict, thinks, fewest,
                   rules.strict_from, spares)  # fmt: skip


def fewest_marked(watermark: Signature) -> int:
    """Return the minimum tokens of a text that may be called marked, of which `WHOLE` have a whole context.

    A context is the last W tokens, and the server knows only those that it generated. The first W tokens of a text are
    therefore marked under contexts that a detector does not see if the text is part of a longer one.
    """
    return max(1, math.ceil(watermark.window / (1 - WHOLE)))


def _margin(level: float | None, policy: Policy, mark: Watermark | None) -> float:
    """Return what a level stricter than the policy's target adds to the z at which marking stops."""
    target = read_target(policy.target)
    if target is None or level is None:
        return 0.0
    wanted = Target(level)
    if mark is not None:
        wanted, target = lone_target(wanted, mark), lone_target(target, mark)
    return max(0.0, wanted.quantile - target.quantile)
