"""What counts as the content of a text, and what is mere wording."""

import pytest

from caw.keeps.parts import content_of, names_in, same_content

pytestmark = pytest.mark.every_case


@pytest.mark.parametrize(("one", "other", "same"), [
    ("She pays $1,200 in May.", "She is paying 1200 in May.", True),
    ("She pays 1200.", "She pays 1300.", False),
    ("It costs $5 here.", "It costs €5 there.", True),  # currency signs, units and per cent are wording
    ("It rose by 5 %", "It rose by 5 points", True),
    ("It is 5 km long", "It is 5 miles long", True),
    ("3 + 4 = 7", "4 + 3 = 7", False),  # order is content
    ("Then Ann left.", "Next, Ann went.", True),  # words that begin a sentence are no names
    ("Then Ann left.", "Then Bob left.", False),
    ("- Tea is hot", "- Coffee is hot", True),
    ("so Tea is hot", "so Coffee is hot", False),
    ("I think so", "we think so", True),
    ("run:\n```\na = b\n```\nnow", "do:\n```\na = b\n```\nthen", True),
    ("run:\n```\na = b\n```", "run:\n```\na = c\n```", False),
    ("call `a = b` now", "run `a = b` now", True),
    ("call `a = b` now", "call `a = c` now", False),
    ("so the answer is (b) then", "the answer is (a) then", False),
    ("so the answer is yes.", "the answer is: yes.", True),
    ("1939-1945 it was", "1939-1944 it was", False),
    ("twelve of them", "Twelve of these", True),
    ("twelve of them", "ten of them", False),
    ("He met Dr. Brown", "He met Dr. Green", False),  # a title ends no sentence
    ("He saw “Tea” here", "He saw “Coffee” here", False),
    ("Yes. “Tea” it is", "Yes. “Coffee” it is", True),
    ("It is not safe.", "It is safe.", False),
    ("It can't be so", "It cannot be so", True),
    ("Yes, it rained.", "No, it rained.", False),
    ("It's safe", "It is safe", True),
    ("他有三只猫", "他有五只猫", False),
    ("٣ قطط", "٥ قطط", False),
    ("", "", True),
])  # fmt: skip
def test_numbers_names_and_code_count_and_wording_does_not(one, other, same):
    assert same_content(one, other) is same


def test_names_count_where_they_begin_a_sentence_if_they_are_known():
    known = names_in("The friend of Ann said so. Then she left.")
    assert known == {"Ann"}
    assert content_of("Ann left. Then Bob came.", known)[1] == ("Ann", "Bob")
    assert not same_content("Ann left.", "She left.", known) and same_content("Ann left.", "She left.")
