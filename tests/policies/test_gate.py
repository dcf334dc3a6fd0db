"""One comparison for a captured step's kernel, against the policies themselves."""

import pytest
import torch

from caw.policies import EntropyThreshold, FixedStrength, LogitDeltaThreshold, Policy, Signals
from caw.policies.gate import gate_of
from caw.record import Record


@pytest.mark.parametrize(
    "policy",
    [FixedStrength(0.7), EntropyThreshold(1.1, 0.3), EntropyThreshold(0.0), LogitDeltaThreshold(0.5, 2.0),
     LogitDeltaThreshold(0.0)],
)  # fmt: skip
def test_gives_the_policys_strengths(policy: Policy) -> None:
    """Ties with the threshold, certain rows and rows that are not finite among them."""
    logits = torch.randn(40, 9) * torch.linspace(0, 4, 40)[:, None]
    logits[1, :2], logits[2, 1:], logits[3, 4] = torch.tensor([8.5, 8.0]), -torch.inf, torch.nan
    signals = Signals(Record.from_logits(logits, 5), logits)
    gate, expected = gate_of(policy, signals), policy.strength(signals)
    assert gate is not None
    passed = torch.ones(40) > 0 if gate.signal is None else gate.signal > gate.threshold
    assert torch.equal(torch.where(passed, gate.value, 0.0).float(), expected)
    assert isinstance(policy, FixedStrength) or 0 < passed.sum() < 40 or policy == LogitDeltaThreshold(0.0)


def test_a_subclass_is_asked_itself() -> None:
    class Own(FixedStrength):
        def strength(self, signals: Signals) -> torch.Tensor:
            return torch.zeros_like(signals.current.logsumexp)

    logits = torch.randn(2, 9)
    assert gate_of(Own(1.0), Signals(Record.from_logits(logits, 5), logits)) is None
