"""Drafts: tokens guessed ahead and checked in a forward that runs anyway. They change speed, never text."""
