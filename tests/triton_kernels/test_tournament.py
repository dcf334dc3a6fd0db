"""SynthID's tournament by its kernels: the tests of the compiled one."""

from __future__ import annotations

from csrc.test_tournament import *  # noqa: F403
