"""What a file of keys and profiles holds in these tests; the key "house" is in the environment."""

from typing import Any

KEY = "a house secret"
PROFILES: dict[str, Any] = {
    "kgw": {"key": "house", "watermark": {"name": "kgw", "delta": 3.0}},
    "exp": {"key": "other", "watermark": {"name": "exp", "top_k": 20}},
    "target": {"key": "house", "watermark": {"name": "unigram"}, "policy": {"name": "fixed", "target": 0.01}},
}
FILE: dict[str, Any] = {
    "keys": {"house": {"env": "HOUSE"}, "other": 11}, "profiles": PROFILES, "default": "kgw", "opt_out": True,
}  # fmt: skip
