"""Drafts: tokens guessed ahead, checked in the forward that is made anyway. They change no text, only its speed."""
