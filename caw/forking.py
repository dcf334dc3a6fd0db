"""Limit forked children to one thread, because torch's thread pool does not survive a fork.

torch computes in GCC's OpenMP threads. A fork copies the pool's memory but not its threads, so the child's first
multi-threaded operation waits for them forever, with or without this library. One thread needs no pool. (A child that
raises torch's thread count hangs again; `multiprocessing`'s "spawn" gives children a pool of their own.)
"""

import functools
import os


def survive_forks() -> None:
    """Make future children of this process compute on one thread, if this process is about to use several."""
    import torch

    if torch.get_num_threads() > 1:
        _register()


@functools.cache
def _register() -> None:
    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(after_in_child=_one_thread)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
