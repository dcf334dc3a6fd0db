"""The door for other engines: choose tokens from logits that they computed, as `caw.generate` would."""

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch

from caw import ops
from caw.checks import require_bool, require_int, require_ints
from caw.decoding.chooser_checks import (
    ChooserText,
    check_before,
    check_finite,
    check_ids,
    check_lengths,
    check_possible,
    check_strengths,
    check_window,
    checked_logits,
    new_ids,
)
from caw.decoding.choosing import Choosing, texts_of
from caw.decoding.penalties import Penalties
from caw.decoding.plan import plan_choice
from caw.decoding.plan_defaults import checked
from caw.decoding.request import Request
from caw.decoding.row_settings import RowLimits, RowSettings
from caw.decoding.state import DecodeState, Positions
from caw.decoding.texts import Texts
from caw.io.show import shown
from caw.models.device import resolve_device
from caw.models.facts import ModelFacts
from caw.policies import CapacityPolicy, FixedStrength, Policy
from caw.policies.mark import Mark, check_kinds
from caw.policies.recommended import Marks, row_of
from caw.record import Record
from caw.settings import Settings
from caw.watermarks import Signature

ROOM = 256  # tokens of a text that there is memory for at first


class Chooser:
    """Choose the tokens of texts whose logits another engine computes.

    The engine keeps the model and its cache. A `Chooser` keeps everything else that decides about a token: contexts,
    what was marked already, the evidence of a target, penalties, and the place in the stream of sampling noise. Given
    the same logits it chooses the tokens that `caw.generate` chooses; `generate` itself keeps its texts in the same
    object.

    Each text has a row, a number that the engine gives it. Per token the engine calls `choose` with the logits of its
    rows, emits the tokens, and hands each text's ids back to `resume`:

        chooser = caw.Chooser(watermark, vocab_size=49152, ends=(2,))
        chooser.start(0, prompt_ids, caw.RowSettings(do_sample=True, seed=7))
        ids = []
        while not ids or ids[-1] != 2:
            token = chooser.choose(logits_after(prompt_ids + ids))
            ids.append(int(token))
            chooser.resume(0, ids)

    Only ids that come back count, never what was chosen: an engine may throw a choice away. Ids that are missing, fewer
    than before or other than those chosen raise an error; an unmarked text is never the result. An engine that filters
    logits after the choice must make sure that the chosen token survives, for instance by a logit of 1e30.

    Logits are used as they come: temperature, top-k, top-p, min-p, penalties and bias are applied here, from the row's
    settings, and must be switched off in the engine. Choosing reads a few numbers back from the device. Not safe to use
    from several threads at once.

    Args:
        watermark: Recommended, KGW, Unigram, EXP or SynthID; None = tokens as the model gives them. The rows of a
            Recommended may be drawn or greedy; its greedy ones, and those drawn below temperature 0.3, are marked at
            strength 1 until they reach the target, unless it names an evaluator.
        policy: how strongly each token is marked; None = FixedStrength(1.0). A `CapacityPolicy` may be one whose
            evaluator does not read the next position: windows (0, 0), (1, 0) and (2, 0). Whether an evaluator and a
            target's weights are for the engine's tokenizer is not checked.
        vocab_size: V, of the logits.
        rows: B, the most texts at once.
        ends: token ids that end a text, for rows whose settings name none.
        mark_eos: whether the mark may decide where a text ends; None = as in `caw.generate`.
        device: of the logits; None = the CPU.
        backend: None = this library's kernels, "reference" = plain PyTorch.
        tokenizer: the model's, which a universal evaluator reads its token classes from; None = unknown.

    Raises TypeError or ValueError in one sentence (expected, found, remedy); a call that raises has changed no text.
    """

    @torch.inference_mode(
        False
    )  # what is allocated here is written later, maybe outside of the caller's inference mode
    @torch.no_grad()
    def __init__(
        self, watermark: Signature | None, policy: Policy | None = None, *, vocab_size: int, rows: int = 1,
        ends: Sequence[int] = (), mark_eos: bool | None = None, device: torch.device | str | None = None,
        backend: str | None = None, tokenizer: Any = None,
    ) -> None:  # fmt: skip
        for name, number in (("vocab_size", vocab_size), ("rows", rows)):
            require_int(name, number, 1, (1 << 31) - 1)
        check_kinds(watermark, policy)
        kernels = ops.of_backend(backend)
        if mark_eos is not None:
            require_bool("mark_eos", mark_eos)
        self.ends = tuple(require_ints("ends", ends))
        for token in self.ends:
            require_int("an end token", token, 0, (1 << 31) - 1)
        self.vocab_size, self.mark_eos = vocab_size, mark_eos
        self.device = resolve_device("cpu" if device is None else device)
        marks = Marks.of(watermark, policy)
        if marks.race is not None and mark_eos is not None:
            raise ValueError(
                f"a Recommended decides for each text whether the mark may end it, got mark_eos={mark_eos}; leave it "
                "out"
            )
        mark, policy = marks.main[0], checked(marks.main[1] or FixedStrength(1.0))
        check_window(mark, policy)
        if tokenizer is not None and isinstance(policy, CapacityPolicy):
            policy = policy.serving(tokenizer)
        self.marks = dataclasses.replace(marks, main=Mark(mark, policy))
        self.marks.main.check_target()
        self._plan = plan_choice(
            ModelFacts(self.device, vocab_size, self.ends), mark, policy, Settings(mark_eos=mark_eos),
            RowLimits.of([RowSettings()], self.ends), rows, kernels=kernels, race=marks.race,
        )  # fmt: skip
        self.watermark, self.policy = self._plan.watermark, policy
        self._choosing = Choosing(self._plan, texts_of(self._plan, ROOM))
        self._rows = dict[int, ChooserText]()
        # the record of p_i is empty until a choice has seen it
        self._unseen = Record.empty(rows, self.device)
        empty = [Record.empty(rows, self.device) for _ in range(1 + self._plan.history)]
        self._positions = Positions(empty[0], empty[1:])

    @property
    def _texts(self) -> Texts:
        return self._choosing.texts

    @property
    def started(self) -> tuple[int, ...]:
        return tuple(sorted(self._rows))

    @property
    def history(self) -> int:
        """N-, the number of earlier positions that the policy's evaluator reads; 0 without an evaluator."""
        return self._plan.history

    @torch.inference_mode(False)
    @torch.no_grad()
    def start(
        self, row: int, prompt: Sequence[int], settings: RowSettings | None = None, *, occurrence: int = 0,
        before: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Begin a text in a row, replacing the one that is there.

        Args:
            row: in [0, B).
            prompt: its token ids, at least one; a list, a tuple, an array or a tensor of integers.
            settings: how its tokens are chosen; None = greedy. `log_probs` is refused: the engine has the logits.
            occurrence: how many texts of the same prompt and seed came before; each draws differently.
            before: float [n, V], 1 <= n <= `history`, logits of the positions before the first new one, the newest
                first, for an evaluator that reads them. Missing ones count as positions that do not exist; `generate`
                has them from the prompt, so without them the first tokens may differ. -inf is allowed, NaN is not.
        """
        require_int("row", row, 0, self._texts.batch - 1)
        require_int("occurrence", occurrence, 0, (1 << 31) - 1)
        prompt = require_ints("prompt", prompt)
        settings = RowSettings() if settings is None else settings
        if isinstance(settings, RowSettings):
            settings = row_of(self.marks.given, settings)
        if not prompt:
            raise ValueError("prompt must have at least one token id, got none; give the ids that the model has read")
        check_ids(row, prompt, self.vocab_size)
        mark = self._checked_mark(settings)
        known = self._records(before)
        ends = settings.ends_of(self.ends, self.vocab_size)
        others = [text.settings for number, text in self._rows.items() if number != row]
        self._widen(RowLimits.of([*others, settings], self.ends))
        request = Request(prompt, settings.max_new_tokens, settings, occurrence, mark=mark)
        self._choosing.start([row], [request], [ends])
        self._rows[row] = ChooserText(settings)
        empty = Record.empty(1, self.device)
        self._positions.write(torch.tensor([row], device=self.device), [empty, *(known or [empty] * self.history)])

    @torch.inference_mode(False)
    @torch.no_grad()
    def resume(
        self, row: int, ids: Sequence[int], *, before: torch.Tensor | None = None, spent: float = math.inf
    ) -> None:
        """Take the ids that the engine has emitted for a text: all of them, known ones included.

        After `start` and `fork`, any ids are accepted, as many as there are: the text continues as if it had never been
        interrupted. After a choice, they must be the known ids followed by the chosen token.

        Args:
            ids: all generated token ids of the text.
            before: as for `start`, of the positions before the one that comes next. Without it and without new ids,
                what is known of them stays.
            spent: nats of the text's free beginning that ids which were not chosen here have had (`Chooser.spent`);
                inf = its beginning is over.

        Raises ValueError for ids that are missing (-1), fewer than before, or not the ones expected. If the engine took
        tokens back on purpose, start the row again.
        """
        text = self._text(row)
        new = new_ids(row, text, ids, self.vocab_size)
        records = self._records(before)
        if text.before is not None:
            self._catch_up()  # those belong to the ids before these
        if new and new != [text.drawn]:
            text.spent = spent
        elif new and text.surprisal is not None:
            text.spent, text.free = text.spent + text.surprisal, text.free + 1
        if new:
            text.drawn = text.surprisal = None
        text.ids, text.chosen = [*text.ids, *new], None if new else text.chosen
        text.late, text.before = [*text.late, *new], records if new or records is not None else text.before

    @torch.inference_mode(False)
    @torch.no_grad()
    def fork(self, row: int, to: int | None = None) -> int:
        """Copy a text into another row, where it may continue differently, replacing what is there.

        Args:
            to: the row of the copy, None = the first empty one.

        Returns:
            The row of the copy. It accepts any next ids, and draws as the text does from the same logits; for another
            answer start the row with another seed or occurrence and `resume` it with the ids so far.
        """
        text = self._text(row)
        self._catch_up()
        if to is None:
            to = next((number for number in range(self._texts.batch) if number not in self._rows), None)
        if to is None:
            raise ValueError(f"a fork needs an empty row, got {self._texts.batch} in use; make a Chooser of more rows")
        require_int("to", to, 0, self._texts.batch - 1)
        if to != row:
            self._texts.fork(row, to)
            self._positions.fork(row, to)
            self._rows[to] = dataclasses.replace(text, ids=list(text.ids), chosen=None, open=True)
        return to

    def spent(self, row: int, *, chosen: bool = False) -> float:
        """Return the surprisal in nats of the ids of a text's free beginning, for a `resume` of the text elsewhere.

        chosen: with that of the token chosen last, which has not come back.
        """
        text = self._text(row)
        return text.spent + (text.surprisal or 0.0 if chosen else 0.0)

    def drop(self, row: int) -> None:
        """Empty a row: its text has ended or was cancelled."""
        self._text(row)
        del self._rows[row]
        self._texts.active[row] = False

    @torch.inference_mode(False)
    @torch.no_grad()
    def choose(
        self, logits: torch.Tensor, rows: Sequence[int] | None = None, lengths: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Choose the next token of each text. Texts change only when `resume` gets it back.

        Args:
            logits: float [R, V] on the chooser's device, the model's own for the next position of R rows. Not changed.
            rows: their R numbers, None = all with a text, ascending.
            lengths: number of ids of each of these texts by the engine's own count. With it, a choice may be repeated,
                as engines do that prefill in chunks. Without it, each token must come back before the next choice.

        Returns:
            int64 [R], the tokens.

        Raises ValueError for logits that are NaN or infinite, or leave no token, for ids that are missing, and for
        strengths that the policy must not give.
        """
        rows = self.started if rows is None else tuple(require_ints("rows", rows))
        for row in rows:
            self._text(row)
        logits = checked_logits(logits, rows, self.vocab_size, self.device)
        check_lengths(self._rows, rows, lengths)
        self._catch_up()
        places = torch.tensor(rows, device=self.device)
        choosing = self._choosing
        if rows != tuple(range(self._texts.batch)):
            choosing = copy.copy(choosing)
            # the first rows, as of an engine that is not full, need no copy: a fifth of a choice for one text
            first = rows == tuple(range(len(rows)))
            choosing.texts = self._texts.take(slice(len(rows)) if first else places)
        record = choosing.record(logits)
        check_finite(record, rows)
        check_possible(choosing.plan, choosing.texts, logits, rows)
        state = DecodeState.of(logits, record, [each.take(places) for each in self._positions.history])
        choosing.texts.refused.zero_()  # of a choice that raised
        choosing.steer()
        ladder = choosing.ladder(state)
        choice = choosing.choose(state, ladder)[2]
        check_strengths(choosing.plan, choosing.texts, rows)
        tokens = ladder.candidates.gather(1, choice[:, None])[:, 0]
        if self.history:  # nothing else reads it
            self._positions.current.write(places, record)
        surprisals: list[float | None] = [None] * len(rows)
        if choosing.drawn_free is not None:
            drawn, nats, beginning = choosing.drawn_free
            free = (beginning & (tokens == drawn)).tolist()
            surprisals = [value if free_draw else None for free_draw, value in zip(free, nats.tolist(), strict=True)]
        for row, token, surprisal in zip(rows, tokens.tolist(), surprisals, strict=True):
            text = self._rows[row]
            text.chosen, text.open = token, False
            text.drawn, text.surprisal = token, surprisal
        return tokens

    # What it keeps --------------------------------------------------------------------------------------------------

    def _widen(self, limits: RowLimits) -> None:
        """Choose for texts within these limits, and make memory for them."""
        plan, texts = self._plan.within(limits), self._texts
        texts.widen(limits.ends)
        if texts.penalties is None:
            texts.penalties = Penalties.empty(texts.batch, self.vocab_size, limits, self.device)
        else:
            texts.penalties.widen(self.vocab_size, limits)
        self._choosing.plan = plan

    @torch.no_grad()
    def _catch_up(self) -> None:
        """Let all ids join that came back since the last choice: those of all texts at once, not row by row."""
        late = {row: text for row, text in self._rows.items() if text.late or text.before is not None}
        longest = max((len(text.ids) for text in late.values()), default=0)
        if longest > self._texts.room:
            self._texts.grow(max(2 * self._texts.room, longest))
        self._choosing.follow(list(late), [text.late for text in late.values()])
        for number in range(max((len(text.late) for text in late.values()), default=0) if self.history else 0):
            rows = [row for row, text in late.items() if number < len(text.late)]
            self._positions.move(self._unseen, torch.tensor(rows, device=self.device))
        for row, text in late.items():
            self._texts.spent[row], self._texts.free_counts[row] = text.spent, text.free
            for mine, record in zip(self._positions.history, text.before or (), strict=text.before is not None):
                mine.write(torch.tensor([row], device=self.device), record)
            text.late, text.before = [], None

    def _records(self, before: torch.Tensor | None) -> list[Record] | None:
        """Records of N- earlier positions from logits [n, V]; TypeError or ValueError for what cannot be theirs."""
        if before is None:
            return None
        check_before(before, self.history, self.vocab_size, self.device)
        record = Record.from_logits(before.float(), kernels=self._plan.kernels)
        if not bool(record.logsumexp.isfinite().all()):
            raise ValueError("before must be finite or -inf, got NaN, infinity or no token at all; check the model")
        rows = [record.take(slice(number, number + 1)) for number in range(before.shape[0])]
        return rows + [Record.empty(1, self.device)] * (self.history - len(rows))

    # What it is given -----------------------------------------------------------------------------------------------

    def _text(self, row: int) -> ChooserText:
        if isinstance(row, bool) or not isinstance(row, int):
            raise TypeError(f"row must be an integer, got {shown(row)}; pass a plain one")
        if row not in self._rows:
            raise ValueError(f"row must be one that has a text, {shown(list(self.started))}, got {row}; start it first")
        return self._rows[row]

    def _checked_mark(self, settings: RowSettings) -> Mark | None:
        """Return what marks a text, None = `watermark`. TypeError or ValueError for settings that it cannot have."""
        if not isinstance(settings, RowSettings):
            raise TypeError(
                f"settings must be caw.RowSettings or None, got {type(settings).__name__}; use e.g. "
                "caw.RowSettings(do_sample=True)"
            )
        if settings.log_probs:
            raise ValueError(
                "a chooser keeps no log-probabilities, got settings with log_probs=True; take them from the logits"
            )
        settings.check_vocabulary(self.vocab_size)
        kind = self.marks.kind(settings)
        kind.check_factor(settings.strength_factor)
        kind.check_beginning(sampled=settings.do_sample)
        mark = self.marks.under(settings.key, settings)
        self._plan.marks.of(mark, settings.key)
        return mark
