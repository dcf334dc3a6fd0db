"""Reference of `race_ladder`: the ladder of each row of a race whose values are known, as `caw/ladder.py` says it."""

from caw.ladder import race_ladder_ref

__all__ = ["race_ladder_ref"]
