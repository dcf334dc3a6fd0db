"""Texts that are tested before they are returned: test each, retry with a stronger mark, select a candidate, write a
receipt.

    attempts    the strength of each attempt at a text, and when the text is done
    efforts     strength and margin of each attempt, and what is refused before a model is loaded
    trial       the test of a text, by the detector that the public will use
    selection   the candidate to return
    receipts    the record of a text's test

Selecting among texts does not change the meaning of p-values: they are statements about unmarked text and a random key.
"""
