"""Pauses between tries grow up to a limit, and have no end."""

from __future__ import annotations

from eddyline.intake.backoff import FIRST_S, LONGEST_S, back_off


def test_pauses_double_up_to_the_longest() -> None:
    pauses = [back_off(failures) for failures in range(1, 100)]
    assert pauses[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_S
    assert [back_off(failures, 1.0, 60.0) for failures in (1, 6, 7)] == [1.0, 32.0, 60.0]


def test_days_of_failures_are_no_error() -> None:
    assert back_off(1_000_000) == LONGEST_S
