"""The share of free beginnings in what a tenant gets.

Their tokens are unmarked. A client who cuts every stream behind its beginning and sends the text back as a message
would join an unmarked text from them: beyond a share of its tenant's tokens, texts have none.
"""

from caw.defaults import FREE_TOKENS

SHARE = 1 / 8  # at everyday surprisal a beginning is a twelfth of an answer of 120 tokens
GRACE = 16 * FREE_TOKENS  # unmarked tokens of a tenant whatever the share, for its first answers
REMEMBERED = 1 << 17  # tokens; beyond, both counts are halved, so that old traffic does not pay for new beginnings


class Beginnings:
    """Counts tokens by tenant since the server started. Used in the event loop."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}

    def allowed(self, tenant: str) -> bool:
        """Return whether the tenant's next text may have a beginning."""
        unmarked, tokens = self._counts.get(tenant, (0, 0))
        return unmarked + FREE_TOKENS <= GRACE + SHARE * tokens

    def add(self, tenant: str, unmarked: int, tokens: int) -> None:
        """Count tokens. A beginning under way counts as the longest, -unmarked takes it back."""
        before, total = self._counts.get(tenant, (0, 0))
        unmarked, tokens = max(0, before + unmarked), total + tokens
        half = tokens > REMEMBERED
        self._counts[tenant] = (unmarked >> half, tokens >> half)
