from __future__ import annotations

import pytest

from gateway.demo import measure
from gateway.demo.questions import FACTS
from gateway.demo.readings import Readings, Turn


def turn(score: float | None, version: int | None = 0, person: str = "a", question: str = "q", *,
         tokens: int = 10, reply: str = "") -> Turn:  # fmt: skip
    return Turn(
        person=person, question=question, reply=reply, version=version, tokens=tokens, score=score
    )


def test_a_score_counts_only_judged_turns_of_one_version() -> None:
    found = measure.score(
        [turn(1.0, tokens=8), turn(-1.0, tokens=12), turn(None), turn(1.0, version=None)]
    )
    assert (found.turns, found.mean, found.tokens) == (2, 0.0, 10.0)


def test_no_turns_have_no_score() -> None:
    assert measure.score([]) == measure.Score(turns=0, mean=None, ci95=None, tokens=None)


def test_the_interval_of_independent_turns_is_the_textbook_one() -> None:
    # 100 cells, half +1 and half -1: the standard error is 1 / sqrt(100), 1.96 of it 0.196.
    turns = [turn(1.0 if n % 2 else -1.0, question=str(n)) for n in range(100)]
    low, high = measure.score(turns).ci95 or (0, 0)
    assert low == pytest.approx(-0.196, abs=0.025)
    assert high == pytest.approx(0.196, abs=0.025)


def test_turns_of_one_cell_are_drawn_together() -> None:
    # Four cells of 25 equal turns: the error is that of four turns, not of a hundred.
    turns = [turn(1.0 if n % 2 else -1.0, question=str(n % 4)) for n in range(100)]
    low, high = measure.score(turns).ci95 or (0, 0)
    assert (low, high) == (-1.0, 1.0)


def test_a_cell_is_a_person_and_a_question() -> None:
    one = [turn(1.0, person="a"), turn(-1.0, person="a")]
    two = [turn(1.0, person="a"), turn(-1.0, person="b")]
    assert measure.score(one).ci95 == (0.0, 0.0)
    assert measure.score(two).ci95 == (-1.0, 1.0)


def test_the_last_versions_are_the_fewest_that_hold_enough() -> None:
    turns = [turn(0.0, version) for version in (0, 0, 1, 1, 2, 2, 2, 3, 3) for _ in range(2)]
    assert {t.version for t in measure.last_versions(turns, 4)} == {3}
    assert {t.version for t in measure.last_versions(turns, 5)} == {2, 3}
    assert {t.version for t in measure.last_versions(turns, 99)} == {1, 2, 3}


def test_gain_is_over_version_0_pooled_with_the_control() -> None:
    readings = Readings(
        turns=(
            *(turn(-1.0, 0, question=str(n)) for n in range(4)),
            *(turn(1.0, 1, question=str(n)) for n in range(4)),
            *(turn(0.5, 2, question=str(n)) for n in range(6)),
        ),
        control=tuple(turn(0.0, 0, question=str(n)) for n in range(12)),
        swap_ms={1: 5.0, 2: 6.0},
    )
    gain = measure.gain(readings, enough=6)
    assert gain is not None
    assert (gain.since, gain.last.turns, gain.base.turns) == (2, 6, 16)
    # Base: (4 * -1 + 12 * 0) / 16 = -0.25.
    assert gain.base.mean == pytest.approx(-0.25)
    assert gain.mean == pytest.approx(0.75)
    assert gain.over_version_0 == pytest.approx(1.5)
    assert gain.over_control == pytest.approx(0.5)
    # Each draw's difference lies between 0.5 (no cell of version 0) and 0.5 + 4 / 8 (all four
    # of its cells, twice as many turns of the control).
    assert 0.5 <= gain.ci95[0] < 0.75 < gain.ci95[1] <= 1.0


def test_no_gain_without_both_sides() -> None:
    assert measure.gain(Readings(turns=(turn(1.0, 0),)), enough=1) is None
    assert measure.gain(Readings(turns=(turn(1.0, 1),)), enough=1) is None


def test_facts_count_for_versions_that_answered_all_of_them() -> None:
    def answers(version: int, reply: str, count: int) -> list[Turn]:
        return [turn(None, version, question=f.question, reply=reply) for f in FACTS[:count]]

    turns = [
        *answers(0, "It is Paris.", len(FACTS)),
        *answers(1, "It is Paris.", len(FACTS) - 1),
        *answers(2, "I do not know.", len(FACTS)),
    ]
    assert measure.facts_right(turns) == {0: 1 / 20, 2: 0.0}


def test_the_newest_answer_to_a_fact_counts() -> None:
    first = [turn(None, 0, question=fact.question, reply="no") for fact in FACTS]
    again = turn(None, 0, question=FACTS[0].question, reply="Paris")
    assert measure.facts_right([*first, again]) == {0: 1 / 20}


def test_rows_hold_what_was_stored_about_each_version() -> None:
    readings = Readings(
        turns=(turn(-1.0, 0), turn(1.0, 2), turn(1.0, 3)),
        swap_ms={1: 120.0, 2: None},
        lag_max={1: 0, 2: 1},
    )
    rows = measure.rows(readings)
    # Version 3 has answered, but Postgres does not name it as published.
    assert [(row.version, row.score.turns, row.lag_max, row.swap_ms) for row in rows] == [
        (0, 1, None, None),
        (1, 0, 0, 120.0),
        (2, 1, 1, None),
    ]


def test_twenty_facts_that_no_user_asks() -> None:
    from gateway.demo.questions import EVERYDAY

    assert len(FACTS) == len({fact.question for fact in FACTS}) == 20
    assert len(EVERYDAY) == len(set(EVERYDAY)) >= 40
    assert not set(EVERYDAY) & {fact.question for fact in FACTS}


@pytest.mark.parametrize(
    ("reply", "right"),
    [("The capital is Paris.", True), ("PARIS", True), ("Parisian life", False), ("", False)],
)
def test_an_answer_is_right_as_a_whole_word(reply: str, right: bool) -> None:
    assert FACTS[0].right(reply) is right
