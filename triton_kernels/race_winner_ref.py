"""Reference of `race_winner`: who wins a keyed race over whole rows of logits, as `caw/ladder.py` says it."""

from caw.ladder import race_winner_ref

__all__ = ["race_winner_ref"]
