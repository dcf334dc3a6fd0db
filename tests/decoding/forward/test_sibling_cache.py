"""What models ask of the cache; where it puts keys and values is asked in test_branching.py."""

import mmap
import sys
from pathlib import Path

import pytest
import torch

from caw.decoding.forward.sibling_cache import SiblingCache

LAYERS, SIZE = 2, 9


def test_keys_and_values_of_different_sizes_are_refused() -> None:
    cache = SiblingCache(1, 1, SIZE, 1, torch.device("cpu"))
    cache.begin_prefill(torch.tensor([0]))
    with pytest.raises(NotImplementedError, match="keys and values must have one shape"):
        cache.layers[0].update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 5))


def test_what_transformers_asks_of_a_cache() -> None:
    cache = SiblingCache(LAYERS, 2, SIZE, 1, torch.device("cpu"))
    assert cache.get_seq_length() == 0
    assert cache.get_mask_sizes(5, 0) == (5, 0)
    assert cache.layers[0].get_max_length() == SIZE
    assert len(cache.layers) == LAYERS


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's count of a process's pages")
def test_a_long_capacity_takes_memory_only_where_tokens_are() -> None:
    def taken() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before, cache = taken(), SiblingCache(2, 4, 1 << 17, 1, torch.device("cpu"))
    key = torch.ones(4, 2, 3, 32)
    cache.allocate(key, key)
    assert cache.store is not None and cache.store.nbytes == 1 << 29
    cache.begin_prefill(torch.arange(4))
    for layer in range(2):
        cache.put(layer, key, key)
    assert torch.equal(cache.store[1, 0, 3, 1, :4, 0], torch.tensor([1.0, 1, 1, 0]))
    assert taken() - before < cache.store.nbytes // 4  # an eighth in pages of 2 MB, which some systems give unasked


def test_too_little_memory_is_one_sentence() -> None:
    key = torch.ones(1, 2, 3, 32)
    with pytest.raises(torch.OutOfMemoryError, match=r"^expected \d+ bytes for keys and values, .* max_new_tokens$"):
        SiblingCache(2, 4, 1 << 40, 1, torch.device("cpu")).allocate(key, key)
