"""Writes golden.json: `python tests/watermarks/make_golden.py`.

The native formats once more, in plain Python integers, written from their description and sharing no code with the
library. golden.json is frozen: a change of it is a change of format, after which old texts can no longer be read.
"""

import hashlib
import json
from pathlib import Path

MASK = 2**32 - 1
FILE = Path(__file__).with_name("golden.json")


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10, Salmon et al. 2011, doi 10.1145/2063384.2063405."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def word(key: int, context: list[int], token: int) -> int:
    low, high = key % 2**32, key // 2**32
    state = [0x574D4358, len(context), 0, 0]
    for offset in range(0, len(context), 4):
        block = [x % 2**32 for x in context[offset : offset + 4]]
        block += [2**32 - 1 - i for i in range(len(block), 4)]
        state = philox([s ^ b for s, b in zip(state, block, strict=True)], [low ^ offset, high])
    token %= 2**32
    return philox([token // 4, *state[:3]], [low ^ state[3], high ^ 0x574D544B])[token % 4]


def normal_key(key: int | str) -> int:
    if isinstance(key, int):
        return key
    return int.from_bytes(hashlib.sha256(b"caw/key:" + key.encode()).digest()[:8], "big")


def derived(key: int | str, domain: bytes) -> int:
    return int.from_bytes(hashlib.sha256(domain + normal_key(key).to_bytes(8, "big")).digest()[:8], "big")


def window(ids: list[int], i: int, width: int) -> list[int]:
    return [ids[j] if j >= 0 else -1 for j in range(i - width, i)]


def is_green(value: int, gamma: float) -> bool:
    return value >> 8 < int(gamma * 2**24)


def lefthash(key: int | str, gamma: float, width: int, context: list[int], token: int) -> bool:
    return is_green(word(derived(key, b"caw/kgw"), context[len(context) - width :], token), gamma)


def selfhash_seed(key: int | str, width: int, context: list[int], token: int) -> int:
    own = derived(key, b"caw/kgw")
    return min(word(own, [x], token) for x in context[len(context) - (width - 1) :])


def selfhash(key: int | str, gamma: float, width: int, context: list[int], token: int) -> bool:
    seed = selfhash_seed(key, width, context, token)
    return is_green(word(derived(key, b"caw/kgw"), [seed, token], token), gamma)


def unigram(key: int | str, gamma: float, token: int) -> bool:
    return is_green(word(derived(key, b"caw/unigram"), [], token), gamma)


def exp_numerators(key: int | str, width: int, ids: list[int]) -> list[int]:
    """(word >> 8) + 1 of every token: its uniform is this over 2^24 + 1."""
    return [(word(normal_key(key), window(ids, i, width), t) >> 8) + 1 for i, t in enumerate(ids)]


def greens(scheme: str, key: int | str, gamma: float, width: int, ids: list[int]) -> str:
    before = 0 if scheme == "unigram" else width - (scheme == "selfhash")
    out = []
    for i, token in enumerate(ids):
        context = window(ids, i, before)
        if scheme == "unigram":
            out.append(unigram(key, gamma, token))
        else:
            out.append({"lefthash": lefthash, "selfhash": selfhash}[scheme](key, gamma, width, context, token))
    return "".join(str(int(g)) for g in out)


def build() -> dict[str, object]:
    ids = [0, 0, 1, 0, 50256, 128255, 17, 17, 17, 4, 2147483647, 3, 2, 1, 0, 0, 1, *range(100, 143)]
    keys: list[int | str] = [0, 1, 42, 2**64 - 1, 0x123456789ABCDEF0, "a secret"]
    contexts = [[], [0], [-1, -1, -1, -1], [-1, -1, 7, 9], [1, 2, 3, 4], [5, 6, 7, 8, 9], list(range(9))]
    words = [
        {"key": normal_key(k), "context": c, "words": [word(normal_key(k), c, t) for t in range(9)]}
        for k in keys
        for c in contexts
    ]
    lists = [
        {"scheme": s, "key": k, "gamma": g, "width": w, "greens": greens(s, k, g, w, ids)}
        for s, widths in (("lefthash", (1, 3)), ("selfhash", (2, 4)), ("unigram", (0,)))
        for w in widths
        for k in keys
        for g in (0.25, 0.5)
    ]
    races = [{"key": k, "width": w, "numerators": exp_numerators(k, w, ids)} for w in (1, 4, 5) for k in keys]
    return {"note": "written by make_golden.py, frozen", "ids": ids, "words": words, "lists": lists, "races": races}


if __name__ == "__main__":
    FILE.write_text(json.dumps(build(), indent=None, separators=(",", ":")).replace("},{", "},\n{") + "\n")
