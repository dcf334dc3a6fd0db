"""Scans for the likeliest green token against their reference and the watermarks, bit for bit."""

import pytest
import torch
from prf_inputs import KEYS, WIDTHS, contexts, key_tensor, mixed_keys

from caw import prf
from caw.triton_kernels.enumerate_candidates_ref import green_argmax_ref
from caw.triton_kernels.green_argmax import green_argmax
from caw.watermarks import KGW, Unigram, keys


def compare_scan(device, scores, context, key, gamma=0.25, selfhash=False, wanted=None):
    keys = key_tensor(mixed_keys(key, len(scores)), device)
    arguments = (scores, context, keys, prf.green_threshold(gamma), selfhash, wanted)
    actual = green_argmax(*arguments)
    expected = green_argmax_ref(*(x.cpu() if isinstance(x, torch.Tensor) else x for x in arguments))
    assert torch.equal(actual[0].cpu(), expected[0]) and torch.equal(actual[1].cpu(), expected[1])
    return actual


@pytest.mark.parametrize(
    "key, width", [*((key, 4) for key in KEYS), *((KEYS[4], width) for width in WIDTHS if width != 4)]
)
def test_scans_find_the_greens_of_the_words(device, key, width):
    """Every token of a small vocabulary by itself is found green exactly where the reference's word says so."""
    context, count = contexts(1, width, device), 8
    only = torch.full((count, count), -torch.inf, device=device).fill_diagonal_(1.0)  # row t holds token t alone
    token, _ = green_argmax(only, context.expand(count, -1), key_tensor([key] * count, device), 1 << 23, False)
    words = prf.vocabulary_words(key, context.cpu(), count)[0]
    assert torch.equal(token.cpu() >= 0, prf.green(words, 0.5))


@pytest.mark.parametrize(
    "vocab_size, selfhash, width", [(1, False, 0), (3, True, 1), (2047, False, 1), (2049, True, 3), (4099, False, 4)]
)
def test_scan_equals_the_reference(device, vocab_size, selfhash, width):
    scores = torch.randn(2, vocab_size).to(device)
    compare_scan(device, scores, contexts(2, width, device), KEYS[5], selfhash=selfhash)


def test_scan_with_ties_masks_strides_and_unwanted_rows(device):
    scores = torch.randn(3000, 5).round().to(device).T
    scores[1, :2990] = -torch.inf
    scores[2] = -torch.inf
    wanted = torch.tensor([True, True, True, False, True], device=device)
    token, score = compare_scan(device, scores, contexts(5, 1, device), 7, wanted=wanted)
    assert token[2] == -1 and token[3] == -1 and score[3] == -torch.inf
    compare_scan(device, scores.bfloat16(), contexts(5, 1, device), 7, gamma=0.001)


@pytest.mark.parametrize("watermark", [KGW(key=5), KGW(key=5, seeding="selfhash"), Unigram(key=5)], ids=repr)
def test_scan_is_what_the_watermarks_do(device, watermark):
    """The full scan of a green-list watermark on its own key and context."""
    scores, context = torch.randn(2, 1001), contexts(2, watermark.window, torch.device("cpu"))
    masked = torch.where(watermark.green_vocabulary(context, 1001), scores, -torch.inf)
    selfhash = getattr(watermark, "seeding", "") == "selfhash"
    key = keys.derive_key(5, b"caw/unigram" if watermark.name == "unigram" else b"caw/kgw")
    token, _ = green_argmax(
        scores.to(device), context.to(device), key_tensor([key] * 2, device), prf.green_threshold(0.25), selfhash
    )
    assert torch.equal(token.cpu(), masked.argmax(dim=1))
