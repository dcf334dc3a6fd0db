"""The prompts that come with the laboratory."""

from caw.io.json_files import read_lines
from caw_lab.training.everyday import EVERYDAY


def test_everyday_prompts():
    """Short ones, none twice."""
    prompts = [line["prompt"] for line in read_lines(EVERYDAY)]
    assert len(prompts) == len(set(prompts)) == 240
    assert all(prompt.isascii() and 3 <= len(prompt.split()) <= 16 for prompt in prompts)
