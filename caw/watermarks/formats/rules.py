"""The seeding schemes of other systems that can be written and read; their lists are in `foreign_lists`.

    format          schemes
    transformers    lefthash, selfhash                                    WatermarkingConfig / WatermarkDetector
    lm-watermarking lefthash (= simple_1), additive, minhash, skipgram, selfhash (= algorithm-3)
    markllm         lefthash (= time), additive, skip, min: KGW; sweet: SWEET and EWD
    sbw             lefthash (= simple_1), simple_4, minhash, skipgram, selfhash: Philox, see `sbw`

Their context is the prompt and the generated tokens. If it is too short they mark nothing, and their detectors skip the
first tokens of a text. A rule that also hashes the candidate ("salted") would need a list for every token of the
vocabulary, so transformers tests only the 40 most likely tokens and lm-watermarking 41 (its loop ends after index 40).
"""

from dataclasses import dataclass

from caw.io.show import shown
from caw.watermarks.formats import sbw, seeding


@dataclass(frozen=True)
class SeedRule:
    """One seeding scheme of one system.

    seeds: see `seeding.Seeds`. table: their lookup table; None = no table.
    width: default context width, which counts the candidate if salted.
    salted: the candidate is hashed too. tested: number of top tokens that a salted rule tests; 0 = all.
    keyless: a seed that contexts with token 0 have under every key, so that its list is no evidence of the key; None =
        no such seed. philox: a Philox word decides about each token; there is no list.
    pads: missing tokens of a context count as 0. modulo: keys are taken modulo the size of the vocabulary.
    """

    seeds: seeding.Seeds
    table: seeding.Table | None = None
    width: int = 1
    salted: bool = False
    tested: int = 0
    keyless: int | None = None
    philox: bool = False
    pads: bool = False
    modulo: bool = False


NGRAMS_ONCE = ("lm-watermarking", "sbw")  # formats whose own detectors count each n-gram of a text once
_TIME = SeedRule(seeding.markllm_kgw("time"), seeding.vocabulary_table, modulo=True)
_SIMPLE = SeedRule(seeding.additive, keyless=0)
_SBW_SELFHASH = SeedRule(sbw.selfhash, width=4, salted=True, philox=True, pads=True)
FOREIGN: dict[str, dict[str, SeedRule]] = {
    "transformers": {
        "lefthash": SeedRule(seeding.transformers_lefthash, keyless=0),
        "selfhash": SeedRule(seeding.transformers_selfhash, seeding.keyed_table, salted=True, tested=40),
    },
    "lm-watermarking": {
        "lefthash": _SIMPLE,
        "simple_1": _SIMPLE,
        "additive": _SIMPLE,
        "minhash": SeedRule(seeding.minhash, seeding.fixed_table, width=4, keyless=seeding.HASH_OF_ZERO),
        "skipgram": SeedRule(seeding.skipgram, seeding.fixed_table, width=5, keyless=seeding.HASH_OF_ZERO),
        "selfhash": SeedRule(seeding.minhash_selfhash, seeding.fixed_table, width=4, salted=True, tested=41),
        "algorithm-3": SeedRule(seeding.minhash_selfhash, seeding.fixed_table, width=4, salted=True, tested=41),
    },
    "markllm": {
        "lefthash": _TIME,
        "time": _TIME,
        "additive": SeedRule(seeding.markllm_kgw("additive"), seeding.vocabulary_table, modulo=True),
        "skip": SeedRule(seeding.markllm_kgw("skip"), seeding.vocabulary_table, modulo=True),
        "min": SeedRule(seeding.markllm_kgw("min"), seeding.vocabulary_table, modulo=True),
        "sweet": SeedRule(seeding.markllm_product, keyless=0),
    },
    "sbw": {
        "lefthash": SeedRule(sbw.additive, philox=True, pads=True, keyless=0),
        "simple_1": SeedRule(sbw.additive, philox=True, pads=True, keyless=0),
        "simple_4": SeedRule(sbw.additive, width=4, philox=True, pads=True, keyless=0),
        "minhash": SeedRule(sbw.minhash, width=4, philox=True, pads=True, keyless=sbw.HASH_OF_ZERO),
        "skipgram": SeedRule(sbw.skipgram, width=5, philox=True, pads=True, keyless=sbw.HASH_OF_ZERO),
        "selfhash": _SBW_SELFHASH,
    },
}


def find_rule(format_name: str, scheme: str) -> SeedRule:
    """Return the rule of a seeding scheme. ValueError naming the known ones."""
    known = FOREIGN[format_name]
    if not isinstance(scheme, str) or scheme not in known:
        names = ", ".join(known)
        raise ValueError(f"seeding of format {format_name!r} must be one of {names}, got {shown(scheme)}; choose one")
    return known[scheme]
