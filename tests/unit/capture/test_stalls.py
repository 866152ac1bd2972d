"""The agent's clock: what of the wall's time was our doing."""

from __future__ import annotations

import pytest

from practicum.capture.stalls import Stalls


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stalls(clock: Clock) -> Stalls:
    return Stalls(outage_s=10.0, clock=clock)


def test_waiting_for_the_first_token_counts_and_being_answered_does_not(stalls: Stalls, clock: Clock) -> None:
    stalls.arrived("s", "a")
    clock.now = 3.0
    assert stalls.stalled_s("s") == 3.0  # while it goes on
    clock.now = 4.0
    stalls.answered("s", "a")
    clock.now = 9.0
    stalls.ended("s", "a", failed=False)
    clock.now = 20.0
    assert (stalls.stalled_s("s"), stalls.stalled_s("other")) == (4.0, 0.0)


def test_who_is_answered_on_one_call_is_not_held_up_by_another(stalls: Stalls, clock: Clock) -> None:
    stalls.arrived("s", "a")
    stalls.answered("s", "a")
    stalls.arrived("s", "b")
    clock.now = 5.0
    assert stalls.stalled_s("s") == 0.0
    stalls.ended("s", "a", failed=False)  # from here on it only waits
    clock.now = 7.0
    assert stalls.stalled_s("s") == 2.0


def test_e6_refused_requests_are_remembered_and_bounded(stalls: Stalls) -> None:
    for number in range(100):
        stalls.refused("s", "POST /v2: 404")
        stalls.refused("s", f"POST /{number}: 404")
    told = stalls.refusals("s")
    assert told["POST /v2: 404"] == 100 and len(told) == 20
    assert (stalls.refusals("other"), stalls.stalled_s("s")) == ({}, 0.0)


def test_two_calls_that_wait_at_once_count_once(stalls: Stalls, clock: Clock) -> None:
    stalls.arrived("s", "a")
    stalls.arrived("s", "b")
    clock.now = 2.0
    stalls.answered("s", "a")
    stalls.ended("s", "a", failed=False)
    clock.now = 3.0
    stalls.answered("s", "b")
    assert stalls.stalled_s("s") == 3.0


def test_the_pause_after_a_failure_of_ours_counts_until_the_next_call_and_not_for_ever(
    stalls: Stalls, clock: Clock
) -> None:
    stalls.arrived("s", "a")
    stalls.ended("s", "a", failed=True)
    clock.now = 4.0
    stalls.arrived("s", "b")
    stalls.answered("s", "b")
    clock.now = 6.0
    stalls.ended("s", "b", failed=True)
    clock.now = 100.0
    assert stalls.stalled_s("s") == 4.0 + 10.0
    clock.now = 200.0
    assert stalls.stalled_s("s") == 14.0


def test_a_swap_before_the_record_counts(stalls: Stalls, clock: Clock) -> None:
    with stalls.waiting("s", "a"):
        clock.now = 2.0
    clock.now = 5.0
    assert stalls.stalled_s("s") == 2.0
    with pytest.raises(ValueError), stalls.waiting("s", "b"):
        raise ValueError
    clock.now = 6.0
    assert stalls.stalled_s("s") == 3.0
