"""What models ask of the cache; where it puts keys and values is asked in test_branching.py."""

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
