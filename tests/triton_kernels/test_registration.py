"""Every kernel is a torch op: schema, mutation and fake agree with what runs; the calls are test_ops.py's."""

import subprocess
import sys

import pytest
import torch
from test_ops import SAMPLES
from torch.utils._pytree import tree_leaves, tree_map

from caw import ops
from caw.ops import launcher

pytestmark = pytest.mark.every_case

CHECKS = ("test_schema", "test_faketensor", "test_autograd_registration")
NAMES = sorted(name for name in SAMPLES if ops.has_kernel(name, "cuda") and ops.has_kernel(name, "cpu"))


def arguments(name, device):
    torch.manual_seed(1)
    return tree_map(lambda x: x.to(device) if torch.is_tensor(x) else x, SAMPLES[name]()[0])


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_schema_and_fake_agree_with_what_runs(device, name):
    torch.library.opcheck(getattr(ops, name), tuple(arguments(name, device)), test_utils=CHECKS)


@pytest.mark.parametrize("name", NAMES)
def test_a_full_graph_holds_it(device, name):
    torch._dynamo.reset()
    op, plain, traced = getattr(ops, name), arguments(name, device), arguments(name, device)
    expected = op(*plain)
    actual = torch.compile(lambda *a: op(*a), fullgraph=True, backend="aot_eager")(*traced)
    for a, e in zip(tree_leaves([actual, traced]), tree_leaves([expected, plain]), strict=True):
        assert not torch.is_tensor(a) or torch.equal(a.nan_to_num(7), e.nan_to_num(7))


def test_the_library_imports_without_triton():
    # None: what an import finds where the package is not installed
    code = "import sys; sys.modules['triton'] = None; import caw, caw.ops, caw.triton_kernels"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_missing_triton_is_said_in_one_sentence(monkeypatch):
    for module in [m for m in sys.modules if m == "caw.triton_kernels.topk_softmax"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ImportError, match=r"caw.topk_softmax on a CUDA tensor requires Triton 3.6 or newer"):
        launcher("topk_softmax", "topk_softmax")()
