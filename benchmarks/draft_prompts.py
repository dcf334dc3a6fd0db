"""Prompts that `bench_drafts.py` measures: chat, maths with worked examples, rewriting a text and editing code."""

from __future__ import annotations

import json
from pathlib import Path

CHAT = [
    "Why is the sky blue?",
    "Write a short story about a dog that learns to sail.",
    "What should I cook for six guests who eat no meat?",
    "Explain to a child how a bicycle stays upright.",
    "Give me three reasons to learn a second language.",
    "How do I keep tomato plants healthy in a dry summer?",
    "Describe a market square early in the morning.",
    "What is the difference between weather and climate?",
]
TEXTS = [
    "The library was built in nineteen hundred and four. It burned down once and was built again from the same plans. "
    "Today it holds forty thousand books, two reading rooms and a small cafe, and it is open every day but Monday.",
    "Bees find flowers by their colour and their smell. When a bee has found a good place, she flies home and dances. "
    "The dance tells the others how far away the flowers are, and in which direction from the sun they have to fly.",
    "My grandfather repaired clocks. He said that a clock is never broken, it has only stopped for a while. On his "
    "desk lay hundreds of small wheels, and he knew where each of them came from and where it belonged.",
    "Salt was once worth its weight in silver. Roads were built to carry it, and towns grew where the roads crossed. "
    "Soldiers were paid in it for a time. Today it stands on every table and nobody thinks of it twice.",
    "The lake freezes late in the year. First the small bays close, then the long arm in the north, and last of all "
    "the deep water in the middle. When the ice is thick enough, people drive across it to save an hour.",
    "A bicycle stays upright because it steers into a fall. When it leans to the left, the front wheel turns to the "
    "left, and the wheels come back under the rider. A rider learns to help it along without knowing how.",
    "The old bridge has seven arches. The third one fell in a flood and was built again in brick, as stone was dear "
    "that year. Boats pass under the middle arch alone, because the water beside it is shallow and full of sand.",
    "My aunt keeps a shop for buttons. Each kind has a drawer of its own, and on each drawer one button is sewn as a "
    "label. She finds any of four thousand kinds in a minute, and she has never written a list of them.",
]
REWRITE = "Repeat the following text word for word, but replace every full stop by an exclamation mark.\n\n{}"
CODES = [
    """def mean(values):
    total = 0
    for value in values:
        total = total + value
    return total / len(values)


def variance(values):
    center = mean(values)
    total = 0
    for value in values:
        total = total + (value - center) ** 2
    return total / len(values)
""",
    """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()

    def is_empty(self):
        return len(self.items) == 0
""",
    """def read_table(path, separator):
    rows = []
    with open(path) as lines:
        for line in lines:
            cells = line.strip().split(separator)
            rows.append(cells)
    return rows
""",
    """def is_prime(number):
    if number < 2:
        return False
    for divisor in range(2, number):
        if number % divisor == 0:
            return False
    return True


def primes_below(limit):
    return [number for number in range(limit) if is_prime(number)]
""",
    """class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
        return self.balance
""",
    """def word_counts(text):
    counts = {}
    for word in text.lower().split():
        word = word.strip(".,;:!?")
        if word in counts:
            counts[word] += 1
        else:
            counts[word] = 1
    return counts
""",
    """def moving_average(values, width):
    averages = []
    for start in range(len(values) - width + 1):
        window = values[start:start + width]
        averages.append(sum(window) / width)
    return averages
""",
    """class Timer:
    def __init__(self, clock):
        self.clock = clock
        self.started = None

    def start(self):
        self.started = self.clock()

    def stop(self):
        elapsed = self.clock() - self.started
        self.started = None
        return elapsed
""",
]
EDIT = "Add type hints to this Python code. Show the whole code again.\n\n```python\n{}```"
QUESTIONS, SHOTS, FIRST = 8, 4, 200  # of GSM8K's test questions, from this one on


def prompts(gsm8k: Path | None) -> dict[str, list[tuple[str, bool]]]:
    """(prompt, whether it is a chat) of each kind."""
    found: dict[str, list[tuple[str, bool]]] = {}
    if gsm8k is not None:
        train, test = ([json.loads(x) for x in (gsm8k / f"{name}.jsonl").open()] for name in ("train", "test"))
        shown = "".join(f"Question: {x['question']}\nAnswer: {x['answer']}\n\n" for x in train[:SHOTS])
        asked = test[FIRST : FIRST + QUESTIONS]
        found["GSM8K"] = [(f"{shown}Question: {x['question']}\nAnswer:", False) for x in asked]
    found["rewriting"] = [(REWRITE.format(text), True) for text in TEXTS]
    found["chat"] = [(text, True) for text in CHAT]
    found["code editing"] = [(EDIT.format(code), True) for code in CODES]
    return found
