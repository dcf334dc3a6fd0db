"""Every kernel is a torch op: schema, mutation and fake agree with what runs, and a full graph holds it.

On the CPU these run the reference or the extension, on a CUDA device the kernel: the same tests.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from caw import ops
from caw.ops import launcher

CHECKS = ("test_schema", "test_faketensor", "test_autograd_registration")
NAMES = ("topk_softmax", "sibling_attention", "sibling_attention_paged", "drafted_attention", "commit_kv",
         "commit_step", "evaluate_capacity", "select_candidate", "evaluator_step", "ladder_step", "decision_step",
         "green_argmax", "race_values", "race_winner", "penalise_logits", "warp_logits",
         "tournament")  # fmt: skip


@pytest.fixture
def where() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def arguments(name, device):
    """One small call of an op."""

    def f(*shape):
        return torch.randn(*shape, device=device)

    def i(*shape, high=3):
        return torch.randint(0, high, shape, device=device)

    batch = 2
    kv = [f(1, 2, batch, 2, 9, 16), f(1, 2, batch, 3, 2, 16), i(batch), torch.tensor([0, 5], device=device),
          torch.tensor([True, False], device=device)]  # fmt: skip
    attention = [f(batch, 4, 3, 16), f(batch, 2, 8, 16), f(batch, 2, 8, 16), f(batch, 2, 3, 16), f(batch, 2, 3, 16)]
    ladder = [i(batch, 2, high=99), f(batch, 2), torch.tensor([1, 2], device=device)]
    weights = [f(6), f(6).abs() + 1, f(5, 6), f(5), f(5, 5), f(5), f(1, 5), f(1)]
    context, key = i(batch, 1), torch.tensor([7, 9], device=device)
    pages = [f(5, 2, 4, 16), f(5, 2, 4, 16), i(batch, 2, high=5).int()]
    record = [f(batch, 3), i(batch, 3), f(batch, 3), f(batch)]
    return {
        "topk_softmax": (f(batch, 50), 10),
        "sibling_attention": (*attention, i(batch), 0.25, 4, 2.0, f(4)),
        "drafted_attention": (*attention, i(batch), 2, 0.25, 4, 2.0, f(4)),
        "sibling_attention_paged": (attention[0], *pages, *attention[3:], i(batch), 0.25),
        "commit_kv": tuple(kv),
        "commit_step": (*kv, f(batch, 20), f(batch, 3, 20), [*record, *(r.clone() for r in record)], record),
        "evaluate_capacity": (f(batch, 6), weights),
        "select_candidate": (*ladder, f(batch).abs(), 0, 4.0),
        "evaluator_step": ([f(batch, 3).softmax(1)] * 2, weights, *ladder, torch.full((batch,), -1, device=device),
                           f(batch), f(batch), f(batch).abs(), 3, 1, 0.5, 1.0, 0, 4.0),
        "ladder_step": (*record[:2], f(batch, 3), f(batch, 50), i(batch, 9), i(batch), key, i(batch) - 2, i(batch, 2),
                        1, 2, 0, 10.0, 1.0, True, 2),
        "decision_step": ([f(batch, 3).softmax(1)] * 2, [i(batch, 3)] * 2, weights, None, *ladder, i(batch) - 2,
                          f(batch), f(batch), f(batch).abs(), None, f(batch), i(batch, 9), i(batch), i(batch),
                          i(batch, 1), torch.tensor([True, False], device=device), i(4, batch, 5), f(4, batch, 2),
                          i(1), 1, 2, 3, 1, 0, 0.5, 1.0, 0, 4.0),
        "green_argmax": (f(batch, 50), context, key, 1 << 22, False),
        "race_values": (f(batch, 3), i(batch, 3), f(batch, 3), context, key),
        "race_winner": (f(batch, 50), context, key, 0.7),
        "penalise_logits": (f(batch, 50), i(batch, 9) - 1, key > 7, f(batch, 3).abs() + 0.5, f(batch, 50) > 1,
                            f(batch, 50)),
        "warp_logits": (f(batch, 50), key > 7, f(batch).abs() + 0.5, key, f(batch).abs() / 9, f(batch).abs() / 9),
        "tournament": (f(batch, 50), f(batch, 50), i(batch), context, i(64, high=1 << 30).int(), 12),
    }[name]  # fmt: skip


def test_all_are_listed():
    listed = {n for n, op in vars(ops).items() if isinstance(op, torch._ops.OpOverload) and ops.has_kernel(n, "cuda")}
    assert set(NAMES) <= listed


@pytest.mark.parametrize("name", NAMES)
def test_schema_and_fake_agree_with_what_runs(where, name):
    torch.library.opcheck(getattr(ops, name), arguments(name, where), test_utils=CHECKS)


@pytest.mark.parametrize("name", NAMES)
def test_a_full_graph_holds_it(where, name):
    """torch.compile without a graph break gives what the plain call gives, mutation included."""
    torch._dynamo.reset()
    op = getattr(ops, name)
    torch.manual_seed(1)
    plain = arguments(name, where)
    torch.manual_seed(1)
    traced = arguments(name, where)
    expected = op(*plain)
    actual = torch.compile(lambda *a: op(*a), fullgraph=True, backend="aot_eager")(*traced)
    for a, e in zip(flat([actual, list(traced)]), flat([expected, list(plain)]), strict=True):
        assert torch.equal(a, e)


def flat(x):
    return [t for t in torch.utils._pytree.tree_leaves(x) if isinstance(t, torch.Tensor)]


def test_the_library_imports_without_triton():
    code = """
import sys
sys.modules["triton"] = None  # what an import finds where the package is not installed
import caw, caw.ops, caw.triton_kernels
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_missing_triton_is_said_in_one_sentence(monkeypatch):
    for module in [m for m in sys.modules if m == "caw.triton_kernels.topk_softmax"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ImportError, match=r"caw.topk_softmax on a CUDA tensor requires Triton 3.6 or newer"):
        launcher("topk_softmax", "topk_softmax")()
