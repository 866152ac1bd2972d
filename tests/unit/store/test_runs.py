"""Runs resume from finished steps; a lease has one holder, and one that lost it changes nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from practicum.errors import Conflict, NotFound
from practicum.store import Store, open_store


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with open_store(tmp_path / "practicum.db", clock=clock) as opened:
        yield opened


def test_steps_are_kept_in_order_and_the_first_output_stands(store: Store, clock: Clock) -> None:
    run = store.create_run("run_1", {"seed": 1}).result()
    assert (run.state, run.config, run.created_at) == ("created", {"seed": 1}, 1000.0)
    store.finish_step("run_1", "select", {"rows": 3}).result()
    clock.now = 1001.0
    store.finish_step("run_1", "train", [1, 2]).result()
    again = store.finish_step("run_1", "select", {"rows": 99}).result()
    assert again.output == {"rows": 3}
    assert [(step.seq, step.step, step.output) for step in store.run_steps("run_1")] == [
        (1, "select", {"rows": 3}),
        (2, "train", [1, 2]),
    ]
    assert [found.updated_at for found in store.runs()] == [1001.0]


def test_creating_a_run_twice_changes_nothing(store: Store) -> None:
    store.create_run("run_1", {"seed": 1}).result()
    store.set_run_state("run_1", "training").result()
    assert store.create_run("run_1", {"seed": 2}).result().state == "training"
    found = store.get_run("run_1")
    assert found is not None
    assert found.config == {"seed": 1}
    assert store.get_run("none") is None


def test_an_unknown_run_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound):
        store.finish_step("none", "train", None).result()
    with pytest.raises(NotFound):
        store.set_run_state("none", "done").result()


def test_g14_a_lease_has_one_holder_and_its_token_grows(store: Store, clock: Clock) -> None:
    first = store.acquire_lease("learner", "a", 10.0).result()
    assert first is not None
    assert store.acquire_lease("learner", "b", 10.0).result() is None
    clock.now += 11.0
    second = store.acquire_lease("learner", "b", 10.0).result()
    assert second is not None
    assert second.token > first.token
    assert store.renew_lease(first, 10.0).result() is None
    assert store.lease("learner") == second


def test_g14_a_holder_that_slept_through_its_lease_changes_nothing(store: Store, clock: Clock) -> None:
    store.create_run("run_1", {}).result()
    first = store.acquire_lease("learner", "a", 10.0).result()
    clock.now += 11.0
    second = store.acquire_lease("learner", "b", 10.0).result()
    with pytest.raises(Conflict, match="lost"):
        store.finish_step("run_1", "train", "stale", fence=first).result()
    with pytest.raises(Conflict, match="lost"):
        store.set_run_state("run_1", "stale", fence=first).result()
    assert store.run_steps("run_1") == []
    store.finish_step("run_1", "train", "fresh", fence=second).result()


def test_a_lease_that_expired_untaken_can_be_renewed(store: Store, clock: Clock) -> None:
    lease = store.acquire_lease("learner", "a", 10.0).result()
    assert lease is not None
    clock.now += 11.0
    renewed = store.renew_lease(lease, 10.0).result()
    assert renewed is not None
    assert (renewed.token, renewed.expires_at) == (lease.token, 1021.0)


def test_an_owner_that_asks_again_keeps_its_token(store: Store) -> None:
    first = store.acquire_lease("learner", "a", 10.0).result()
    assert store.acquire_lease("learner", "a", 10.0).result() == first


def test_a_released_lease_is_free_and_the_release_of_a_lost_one_harms_nobody(store: Store, clock: Clock) -> None:
    first = store.acquire_lease("learner", "a", 10.0).result()
    assert first is not None
    store.release_lease(first).result()
    second = store.acquire_lease("learner", "b", 10.0).result()
    assert second is not None
    assert second.token > first.token
    store.release_lease(first).result()
    assert store.lease("learner") == second


def test_a_clock_that_goes_back_leaves_one_holder(store: Store, clock: Clock) -> None:
    store.acquire_lease("learner", "a", 10.0).result()
    clock.now -= 3600.0
    assert store.acquire_lease("learner", "b", 10.0).result() is None
