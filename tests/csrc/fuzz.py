"""Fuzzer of the argument checks: shapes, dtypes, strides and numbers, valid and not, must never crash.

    python tests/csrc/fuzz.py [seconds] [seed]

Every call is one of test_ops.py, of other sizes, some of whose arguments are changed; it returns or raises
RuntimeError, TypeError or NotImplementedError. Run it under the sanitizers with `python tests/csrc/sanitize.py fuzz`.
"""

import collections
import random
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch

from caw import ops

TESTS = Path(__file__).resolve().parents[1]
SOURCES = sorted((TESTS.parent / "csrc").glob("*.cpp"))
EVERY = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool]
DIMENSIONS = {"C": [2], "HK": [1, 2, 3], "D": [3, 5, 9, 17, 33], "S": [7, 8, 33, 70, 600], "K": [11, 12, 100],
              "V": [37, 38, 64, 129, 1031]}  # fmt: skip
NUMBERS = [0, 1, -1, 2, 3, 7, 64, 65, 100, 2**24, 2**31, 2**32, 2**63 - 1, -(2**63)]
REALS = [0.0, 1.0, -1.0, 0.5, 1e30, float("inf"), float("nan")]


def changed(x: Any) -> Any:
    """The argument, mostly; sometimes one of another shape, dtype, stride or value."""
    if isinstance(x, list):
        x = [changed(one) if random.random() < 3 / (len(x) + 3) else one for one in x]
        return x[: random.randrange(len(x) + 1)] if random.random() < 0.03 else x
    if torch.is_tensor(x):
        return changed_tensor(x)
    if random.random() > 0.05:
        return x
    if isinstance(x, (bool, str)):
        return random.choice([True, False]) if isinstance(x, bool) else "other"
    return random.choice(REALS if isinstance(x, float) else [*NUMBERS, None])


def changed_tensor(x: torch.Tensor) -> torch.Tensor:
    chance = random.random()
    if chance < 0.03 and x.dim():  # another size
        where = random.randrange(x.dim())
        x = x.narrow(where, 0, random.randrange(x.shape[where] + 1))
    elif chance < 0.05:
        x = x[None] if random.random() < 0.5 or not x.dim() or not x.shape[0] else x[0]
    elif chance < 0.08:
        x = x.to(random.choice(EVERY))
    elif chance < 0.12 and x.numel():
        x = x.clone(memory_format=torch.contiguous_format)
        what = [torch.nan, torch.inf, -torch.inf] if x.is_floating_point() else [0, 1, 255, 2**31 - 1, 2**62, -1]
        value = random.choice(what)
        if x.is_floating_point() or torch.iinfo(x.dtype if x.dtype != torch.bool else torch.uint8).max >= value >= (
            0 if x.dtype in (torch.uint8, torch.bool) else -1
        ):
            x.view(-1)[random.randrange(x.numel())] = value
    if x.dim() and random.random() < 0.15:
        x = x.repeat_interleave(2, dim=-1)[..., ::2]
    return x


LEAST, MOST = 40, 400  # calls of each, however slow the machine; and until one returned, which is rare for some


def main(seconds: float, seed: int) -> None:
    sys.path.insert(0, str(TESTS))
    import test_ops

    random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(2)
    names = re.findall(r'm\.impl\("(\w+)"', "".join(path.read_text() for path in SOURCES))
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    end, done, missing = time.monotonic() + seconds, 0, set(names)
    while time.monotonic() < end or done < LEAST * len(names) or (missing and done < MOST * len(names)):
        name = names[done % len(names)]
        if done % len(names) == 0:
            for dimension, sizes in DIMENSIONS.items():
                setattr(test_ops, dimension, random.choice(sizes))
            test_ops.H = test_ops.HK * random.choice([1, 2, 3])
        done += 1
        try:
            getattr(ops, name)(*changed(random.choice(test_ops.SAMPLES[name]())))
            counts[name, "returned"] += 1
            missing.discard(name)
        except (RuntimeError, TypeError, NotImplementedError):
            counts[name, "refused"] += 1
    for (name, how), count in sorted(counts.items()):
        print(f"{name:24} {how:9} {count}")
    if missing:
        sys.exit(f"no call of {', '.join(sorted(missing))} ever returned: the fuzzer only tests refusals there")


if __name__ == "__main__":
    if ops.missing_extension():
        sys.exit(ops.missing_extension())
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
