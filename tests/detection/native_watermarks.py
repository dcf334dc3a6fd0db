"""Watermarks of the native format that detection is tested with, and a text that repeats itself."""

from caw.watermarks import EXP, KGW, Unigram

ALL = [
    KGW(key=1),
    KGW(key=1, seeding="selfhash"),
    KGW(key=1, context_width=3),
    Unigram(key=1),
    EXP(key=1),
    EXP(key=1, context_width=6),
]
IDS = [f"{w.name}{w.window}" for w in ALL]
REPETITIVE = [5, 6, 5, 6, 5, 6, 7, 5, 6, 7, 7, 7, 7]
