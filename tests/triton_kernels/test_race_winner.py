"""Winners of races over whole rows by the kernel: the tests of the compiled one, but for a vocabulary of a million."""

from __future__ import annotations

from csrc.test_race_winner import *  # noqa: F403

del test_the_largest_noise_is_not_cut_off  # noqa: F821
