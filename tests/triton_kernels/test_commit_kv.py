"""Commits by the kernels: the tests of the compiled one, and whole steps, of which everything mutated is compared."""

import pytest
import torch
from csrc.test_commit_kv import (  # noqa: F401
    test_a_view_of_a_larger_store,
    test_many_times_and_any_strides,
    test_the_chosen_candidate_is_appended,
)

from caw.triton_kernels.commit_kv import commit_kv, commit_step
from caw.triton_kernels.commit_kv_ref import commit_step_ref
from csrc import test_commit_kv as shared


def inputs(device, *case):
    return [x.to(device) for x in shared.inputs(*case)]


def same_prefix(actual, expected, lengths):
    return all(
        torch.equal(actual[:, :, b, :, :n].cpu(), expected[:, :, b, :, :n]) for b, n in enumerate(lengths.tolist())
    )


def state(device, batch, vocab_size, slots, k, positions):
    def record():
        return [torch.randn(batch, k, device=device), torch.randint(0, 999, (batch, k), device=device),
                torch.rand(batch, k, device=device), torch.randn(batch, device=device)]  # fmt: skip

    records = [tensor for _ in range(positions) for tensor in record()]
    logits = torch.randn(batch, slots + 1, vocab_size, device=device)
    return logits[:, 0].clone(), logits[:, 1:], records, record()


def cpu(x):
    return [cpu(y) for y in x] if isinstance(x, list) else x.detach().cpu().clone()


@pytest.mark.parametrize("positions, vocab_size, k", [(1, 1, 1), (2, 2049, 100), (3, 1025, 128)])
def test_commit_step_equals_the_reference(device, positions, vocab_size, k):
    arguments = [*inputs(device, 1, 3, 2, 6, 16, 4, torch.float32, [0, 2, 5], [True, False, True]),
                 *state(device, 3, vocab_size, 4, k, positions)]  # fmt: skip
    expected = [cpu(x) for x in arguments]
    commit_step(*arguments)
    commit_step_ref(*expected)
    assert torch.equal(arguments[3].cpu(), expected[3]) and torch.equal(arguments[5].cpu(), expected[5])
    assert same_prefix(arguments[0], expected[0], expected[3])
    for actual, wanted in zip([*arguments[7], *arguments[8]], [*expected[7], *expected[8]], strict=True):
        assert torch.equal(actual.cpu(), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_records_of_all_candidates_and_rows_that_ended(device, dtype):
    """The chosen candidate's record among those of all, half-precision logits, no prefix for a text that ended."""
    alive = torch.tensor([True, False, True], device=device)
    arguments = [*inputs(device, 1, 3, 2, 6, 16, 4, torch.float32, [1, 2, 3], [True, False, True]),
                 *state(device, 3, 37, 4, 5, 2)]  # fmt: skip
    arguments[6] = arguments[6].to(dtype)
    arguments[8] = [torch.randn(12, 5, device=device), torch.randint(0, 99, (12, 5), device=device),
                    torch.rand(12, 5, device=device), torch.randn(12, device=device)]  # fmt: skip
    expected = [cpu(x) for x in arguments]
    for _ in range(2):  # lengths count right again
        commit_step(*arguments, alive)
        commit_step_ref(*expected, alive.cpu())
        assert torch.equal(arguments[3].cpu(), expected[3]) and torch.equal(arguments[5].cpu(), expected[5])
    assert expected[3].tolist()[1] == 0 and expected[3][0] == 3
    for actual, wanted in zip(arguments[7], expected[7], strict=True):
        assert torch.equal(actual.cpu(), wanted)


def test_choice_beyond_what_was_forwarded_reads_nothing_wild(device):
    """step_logits may have fewer candidates than scratch has slots: a choice is clamped to those that both have."""
    arguments = [*inputs(device, 1, 2, 2, 6, 16, 4, torch.float32, [0, 2], [True, True]), *state(device, 2, 9, 2, 5, 1)]
    wanted, (store, scratch, choice, lengths, active) = arguments[6][:, 1].clone(), arguments[:5]
    choice.copy_(torch.tensor([3, 2]))
    commit_step(*arguments)
    assert torch.equal(arguments[5], wanted)
    for b, place in enumerate((0, 2)):
        assert torch.equal(store[:, :, b, :, place], scratch[:, :, b, 1])
    assert lengths.tolist() == [1, 3] and active.all()


def test_lengths_past_the_cache(device):
    arguments = inputs(device, 1, 2, 1, 3, 8, 2, torch.float32, [4, 1], [True, True])
    if device.type == "cpu":
        with pytest.raises(ValueError, match=r"^lengths must be in \[0, 3\]"):
            commit_kv(*arguments)
    else:
        commit_kv(*arguments)
        assert arguments[3].tolist() == [4, 2]
