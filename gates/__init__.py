"""Checks too long for every test run, each with a receipt that says on which contents it passed.

    python -m gates list            # every gate and whether its receipt still holds
    python -m gates run --stale     # those whose receipt does not hold
    python -m gates run cuda aot    # these

A gate is the tests marked `@pytest.mark.gate("its name")` and the files they depend on, which `table.py` names. A
receipt holds while those files' contents stay the same: comments, blank lines and the files' places do not count.
"""
