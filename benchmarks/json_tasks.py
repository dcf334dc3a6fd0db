"""Tasks, drawn from lists by a seed, for a JSON object: three fields must be right, two are free text."""

import random
from typing import NamedTuple

FIELDS = ("name", "id", "unit")
SEED = 47


class JsonTask(NamedTuple):
    """A request, and what its object must hold. kind: what it is about."""

    kind: str
    prompt: str
    facts: dict[str, str | int]


KINDS = {
    "tool": (["hand saw", "claw hammer", "spirit level", "bench vice", "cordless drill"], "euro", "shop catalogue"),
    "plant": (["basil", "lavender", "fern", "tomato", "rosemary"], "cm", "garden guide"),
    "trip": (["Harbour walk", "Castle tour", "River cruise", "Forest trail", "Old town visit"], "km", "travel leaflet"),
    "dish": (["lentil soup", "apple pie", "mushroom risotto", "potato salad", "carrot cake"], "g", "cookbook"),
    "course": (["Pottery", "First aid", "Chess for beginners", "Watercolour", "Spanish"], "hours", "course list"),
    "room": (["Blue Room", "Garden Room", "Attic Studio", "Corner Suite", "Library Hall"], "m2", "booking page"),
}
FREE = {
    "tool": ("description", "advice"),
    "plant": ("appearance", "care"),
    "trip": ("description", "what_to_bring"),
    "dish": ("description", "serving_suggestion"),
    "course": ("description", "who_should_come"),
    "room": ("description", "best_used_for"),
}


def json_tasks(count: int = 60, seed: int = SEED) -> list[JsonTask]:
    """Return the first `count` tasks of a seed; they do not depend on how many are asked for."""
    draw = random.Random(seed)
    made = []
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        names, unit, where = KINDS[kind]
        facts: dict[str, str | int] = {
            "id": f"{kind[0].upper()}-{draw.randrange(100, 1000)}",
            "name": draw.choice(names),
            "amount": draw.randrange(2, 500),
            "unit": unit,
        }
        one, two = FREE[kind]
        words = draw.choice((12, 20, 30))
        made.append(JsonTask(kind, (
            f"Write one entry of a {where} as a JSON object and nothing else. It has exactly these fields: "
            f'"id" ("{facts["id"]}"), "name" ("{facts["name"]}"), "amount" ({facts["amount"]}), "unit" ("{unit}"), '
            f'"{one}" (a sentence of about {words} words) and "{two}" (two sentences of about {words} words together).'
        ), facts))  # fmt: skip
    return made
