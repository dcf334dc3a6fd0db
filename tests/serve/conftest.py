"""One server for the tests that do not change its settings."""

from collections.abc import Iterator

import pytest
from serve.serving import Running, running


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(max_factor=4.0) as found:
        yield found
