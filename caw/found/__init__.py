"""Texts that are found before they leave: test each, make the others again more strongly, choose, write a receipt.

    attempts    which text is made how strongly, and when it is done
    efforts     how strongly each attempt at a text is made
    early       what is refused before a model is loaded
    trial       the test of a text, as text, by the detector that the public will use
    selection   which of the candidates of a text leaves
    receipts    what is said of a text's test afterwards

Choosing among texts changes no p-value's meaning: it is a statement about unmarked text and a random key.
"""
