"""What vLLM's requests ask for: the profile that they choose, and their sampling as settings of a text."""

from __future__ import annotations

from typing import Any

from caw.decoding.row_settings import RowSettings
from caw.integrations.profiles import Marks, Profile
from caw.io.show import shown

VARIABLE = "CAW_VLLM_CONFIG"
LONGEST = 1 << 24  # tokens of a text of which no other limit is known
GREEDY = 1e-5  # temperature below which vLLM is greedy
# what vLLM does after or beside the choice, so that the chosen token is not what was decided by the request's settings
# or does not survive; each with the value that switches it off
REFUSED: dict[str, Any] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "thinking_token_budget": None,
    "trace_decode_token_ids": None,
}


def asked(marks: Marks, params: Any) -> Profile | None:
    """The profile of a request by vLLM's SamplingParams, None = it is not marked.

    Raises ValueError, in one sentence, for a request that cannot be marked as it asks.
    """
    profile = marks.chosen(params.extra_args or {}, "vllm_xargs")
    if profile is not None:
        _refuse(params)
        settings_of(params, LONGEST, 0)
    return profile


def settings_of(params: Any, longest: int, seed: int) -> RowSettings:
    """What vLLM's SamplingParams say of a text; ValueError for numbers that cannot be.

    longest: the most tokens of a text. seed: of a request that has none.
    """
    drawn = params.temperature >= GREEDY
    most = longest if params.max_tokens is None else min(params.max_tokens, longest)
    try:
        return RowSettings(
            max_new_tokens=most,
            do_sample=drawn,
            temperature=params.temperature if drawn else 1.0,
            top_k=max(params.top_k, 0),
            top_p=params.top_p,
            min_p=params.min_p,
            seed=seed if params.seed is None else params.seed,
            ends=tuple(sorted(params.all_stop_token_ids)),
        )
    except TypeError as error:
        raise ValueError(str(error)) from None


def _refuse(params: Any) -> None:
    for name, off in REFUSED.items():
        value = getattr(params, name, off)
        if value != off:
            # vLLM fills in what the model's generation config says, which a client did not ask for
            remedy = (
                ", or start the server with --generation-config vllm if it is the model's" if off is not None else ""
            )
            raise ValueError(f"{name} must be {off} in a watermarked request, got {shown(value)}; leave it out{remedy}")
    if params.max_tokens == 1 and (params.logprobs or 0) > 1:  # so vLLM asks for each step of a beam search
        raise ValueError(
            "a watermarked request must not be a step of a beam search (max_tokens 1 with several logprobs), whose "
            "texts would not be marked; ask for 2 tokens, or without logprobs"
        )
