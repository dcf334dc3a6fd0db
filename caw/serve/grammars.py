"""JSON mode: the tokens that keep a text valid JSON, with or without a schema.

The library llguidance provides the allowed next tokens; all others are excluded before the watermark sees the logits.
So the mark chooses only among allowed tokens, and has no effect where only one is allowed.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from caw.decoding.texts import Texts
from caw.decoding.warping import Warper
from caw.serve.errors import BAD, ApiError

MAX_SCHEMA = 1 << 16  # letters
OBJECT = {"type": "object"}
# no more between two parts than people write: some models would otherwise write nothing else
RULES: Any = {"whitespace_pattern": r"[ \n\t]{0,16}", "lenient": False, "coerce_one_of": False}
COMPACT: Any = {
    "whitespace_flexible": False, "item_separator": ",", "key_separator": ":", "lenient": False, "coerce_one_of": False,
}  # fmt: skip
# at the worst a second to compile, 20 ms a token and 20 MB: a schema is a client's
LIMITS: dict[str, Any] = {
    "max_items_in_row": 2000, "initial_lexer_fuel": 500_000, "step_lexer_fuel": 70_000, "step_max_items": 20_000,
    "max_lexer_states": 10_000, "max_grammar_size": 50_000, "verbose_errors": False,
}  # fmt: skip


class Grammar:
    """Follows one text. vocab_size: size of the model's logits.

    error: why the text cannot continue, "" if it can. status: HTTP status of the error: 400 if the schema exceeds its
    limits, 500 if the server is at fault.
    """

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self.matcher, self.vocab_size = matcher, vocab_size
        self.error, self.status, self.followed = "", BAD, 0

    def allowed(self) -> torch.Tensor:
        """Return the allowed tokens, bool [V]; all of them after an error, which ends the text.

        Where the schema dictates the text, one: the tokenizer's own, not any that spells a part of it. So the mark has
        no choice there (`Choosing.open_positions`).
        """
        if dictated := self.matcher.compute_ff_tokens():
            only = torch.zeros(self.vocab_size, dtype=torch.bool)
            only[dictated[0]] = True
            return only
        mask = torch.frombuffer(bytearray(self.matcher.compute_bitmask()), dtype=torch.uint8)
        if self.matcher.is_error():
            self._over_limits()
            return torch.ones(self.vocab_size, dtype=torch.bool)
        bits = (mask[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
        return bits.flatten()[: self.vocab_size].bool()

    def advance(self, token: int) -> None:
        if self.error or self.matcher.is_stopped() or self.matcher.try_consume_tokens([token]):
            return
        if self.matcher.is_error():
            self._over_limits()
        else:  # what was allowed is taken, so something else was sampled
            self.error, self.status = "the text left its schema because of a server error; try again later", 500

    def go_on(self, tokens: Sequence[int]) -> None:
        """Process the tokens that an earlier request generated."""
        for token in tokens:
            self.advance(token)
            self.followed += 1
            if self.error:  # known only now: what was made before knew nothing of the schema
                self.error, self.status = "the text so far does not match the schema; leave response_format out", BAD
                return

    def follow(self, tokens: Sequence[int]) -> None:
        """Append what a text has more than it had; a fork's own first token comes twice."""
        for token in tokens[self.followed :]:
            self.advance(token)
        self.followed = max(self.followed, len(tokens))

    def _over_limits(self) -> None:
        """Record an exceeded limit as status 400; clients would retry after a 500."""
        self.error, self.status = "the schema exceeds the server's limits; simplify it", BAD


@dataclass(frozen=True)
class GrammarRules:
    """What a schema (by the grammar that is made) says of a guarded text's changes (`detectable.search.TextRules`)."""

    grammar: Callable[[], Grammar]

    def allowed(self, text: Sequence[int], changes: Sequence[tuple[int, int]]) -> list[bool]:
        """Tell of each (place, token) whether the token may stand there behind the text so far."""
        grammar, last = self.grammar(), max((place for place, _ in changes), default=-1)
        at: dict[int, list[int]] = {}
        for number, (place, _) in enumerate(changes):
            at.setdefault(place, []).append(number)
        verdicts = [False] * len(changes)
        for place, token in enumerate(text[: last + 1]):
            for number in at.get(place, ()):
                verdicts[number] = grammar.matcher.validate_tokens([changes[number][1]]) == 1
            if grammar.matcher.try_consume_tokens([token]) != 1:
                break
        return verdicts

    def keeps(self, text: Sequence[int], *, ended: bool) -> bool:
        """Tell whether tokens are a text of the schema: a whole one if it ended, else a beginning."""
        matcher = self.grammar().matcher
        return matcher.try_consume_tokens(list(text)) == len(text) and (not ended or bool(matcher.is_accepting()))


class Grammars:
    """Creates grammars for one model; thread-safe.

    Args:
        ends: end token ids. Raises ImportError without llguidance, ValueError for a slow tokenizer.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, ends: tuple[int, ...]) -> None:
        import llguidance
        from llguidance.hf import from_tokenizer

        self.matcher, self.vocab_size = llguidance.LLMatcher, vocab_size
        self.limits = llguidance.LLParserLimits(**LIMITS)
        self.tokenizer = from_tokenizer(tokenizer, n_vocab=vocab_size, eos_token=list(ends))

    def compiled(self, schema: Any, *, compact: bool = False) -> Callable[[], Grammar]:
        """Return a function that creates the grammar of this schema. ApiError for an unsupported schema.

        compact: without spaces and line breaks between parts, so that their starts are known: for calls.
        """
        text, where = json.dumps(OBJECT if schema is None else schema), "tools" if compact else "response_format"
        if len(text) > MAX_SCHEMA:
            why = f"a schema may have at most {MAX_SCHEMA} characters, got {len(text)}; simplify it"
            raise ApiError(BAD, why, parameter=where)
        try:
            grammar = self.matcher.grammar_from_json_schema(text, overrides=COMPACT if compact else RULES)
        except ValueError as error:
            raise _refused(str(error), where) from None
        # made here, which may take a second, and copied by the thread that decodes
        first = self.matcher(self.tokenizer, grammar, log_level=0, limits=self.limits)
        if first.is_error():
            raise _refused(first.get_error(), where)
        return lambda: Grammar(first.deep_copy(), self.vocab_size)


def _refused(reason: str, where: str) -> ApiError:
    why = f"unsupported schema: {(reason.splitlines() or [''])[0][:200]!a}; change it"
    return ApiError(BAD, why, parameter=where)


class RowMasks:
    """A warper that excludes tokens forbidden by a row's grammar, then warps as before.

    Args:
        inner: warper of the plan's own settings. of: returns the grammar of a batch row, None without one.
    """

    def __init__(self, inner: Warper | None, of: Callable[[int], Grammar | None]) -> None:
        self.inner, self.of = inner, of

    def __call__(self, logits: torch.Tensor, texts: Texts) -> torch.Tensor:
        """Return logits float32 [B, V] with -inf for forbidden tokens; the same tensor if all are allowed."""
        bound = [(row, grammar) for row in range(logits.shape[0]) if (grammar := self.of(row)) is not None]
        if bound:
            rows = torch.tensor([row for row, _ in bound], device=logits.device)
            allowed = torch.stack([grammar.allowed() for _, grammar in bound]).to(logits.device)
            logits = logits.index_copy(0, rows, logits[rows].masked_fill(~allowed, -torch.inf))
        return logits if self.inner is None else self.inner(logits, texts)
