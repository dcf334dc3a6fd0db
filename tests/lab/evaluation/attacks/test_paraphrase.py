"""Paraphrases from a stand-in endpoint."""

from typing import Any

from stand_in_endpoint import completion, serve

from caw_lab.evaluation.attacks import AttackSetup, parse_attack
from caw_lab.evaluation.attacks.paraphrase import INSTRUCTION

KEY = "secret-key"


def attack(url: str, **options: Any) -> Any:
    endpoint = {"model": "maker/writer", "key": KEY, "base_url": url, "retries": 1, "timeout": 5.0, **options}
    return parse_attack("paraphrase", AttackSetup(endpoint=endpoint))


def test_asks_and_counts_changed_words() -> None:
    with serve(lambda body: completion("  He owns five apples and eats two.\n")) as endpoint:
        ask = attack(endpoint.url)
        out = ask("He has five apples and eats two.", "q/1")
        again = ask("He has five apples and eats two.", "q/1")
        ask("He has five apples and eats two.", "q/2")
    assert out.text == "He owns five apples and eats two."
    assert (out.edited, out.words) == (1, 7) and again == out
    first, second, third = endpoint.requests
    assert first["messages"][0]["content"] == INSTRUCTION
    assert first["messages"][1]["content"] == "He has five apples and eats two."
    assert first["seed"] == second["seed"] != third["seed"]
    assert endpoint.headers[0]["authorization"] == f"Bearer {KEY}"
    assert ask.name == "paraphrase-maker-writer"
    assert KEY not in repr(ask) + str(ask.describe()) and ask.describe()["model"] == "maker/writer"
