"""Where a rollout rejoins, and the text that is spliced."""

from caw.detectable.splicing import Patch, hopeless, rejoined, spliced

OLD = list(range(100, 140))


def test_a_rollout_rejoins_where_its_last_tokens_are_a_stretch_of_the_old_text() -> None:
    same, longer, shorter = [*OLD[:5], 7, *OLD[6:14]], [*OLD[:5], 7, 8, 9, *OLD[6:14]], [*OLD[:5], 7, *OLD[9:17]]
    assert [rejoined(OLD, tokens, 5, 8) for tokens in (same, longer, shorter)] == [14, 14, 17]
    assert rejoined(OLD, same[:-1], 5, 8) is None, "one token too few"
    assert rejoined(OLD, [*OLD[:5], *OLD[5:13]], 5, 8) is None, "the changed token is not among them"


def test_it_rejoins_near_by_only() -> None:
    assert rejoined(OLD, [7, *OLD[25:33]], 0, 8) == 33, "24 places further on"
    assert rejoined(OLD, [7, *OLD[26:34]], 0, 8) is None
    assert rejoined(OLD, [*OLD[:5], *range(13), *OLD[5:13]], 5, 8) is None, "13 places back"


def test_a_loop_is_no_place_to_rejoin() -> None:
    loop = [1, *[5] * 30]
    assert rejoined(loop, [2, *[5] * 9], 0, 8) is None


def test_a_rollout_that_cannot_rejoin_in_time_is_hopeless() -> None:
    lost = [*OLD[:5], *range(1, 14)]  # 12 tokens behind the change, none of which matches
    assert [hopeless(OLD, lost[: 6 + new], 5, 8, 20) for new in (11, 12)] == [False, False]
    assert hopeless(OLD, [*lost, 99], 5, 8, 20), "13 and the 8 that must match are more than 20"
    assert not hopeless(OLD, [*lost, OLD[18]], 5, 8, 20), "one that matches by now"
    assert hopeless(OLD, [*OLD[:5], 7, *OLD[6:14]], 5, 8, 8), "the horizon itself"


def test_patches_are_trimmed_and_spliced_in_order() -> None:
    late, early = Patch(20, 24, (1, 2, *OLD[22:24])).trimmed(OLD), Patch(3, 5, (9, 9, 9, OLD[4])).trimmed(OLD)
    assert (late, early) == (Patch(20, 22, (1, 2)), Patch(3, 4, (9, 9, 9)))
    assert spliced(OLD, [late, early]) == [*OLD[:3], 9, 9, 9, *OLD[4:20], 1, 2, *OLD[22:]]
    assert late.meets(Patch(21, 30, (1,))) and not late.meets(Patch(22, 30, (1,))) and not late.meets(early)
