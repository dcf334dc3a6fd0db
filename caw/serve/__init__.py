"""`caw serve`: an OpenAI-compatible endpoint that marks what it says.

contracts   what it asks of a registry of keys and of a log of receipts
"""
