"""The demo: four outputs of one prompt, on a terminal or as a page."""
