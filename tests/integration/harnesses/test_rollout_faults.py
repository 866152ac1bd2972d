"""Faults of the program's own, and of functions that callers hand in: one rollout or one group ends, with a cause; the
service goes on, and lets go of what it holds where it cannot begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.integration.harnesses.rollout_world import World, task

from practicum.harnesses.results import RolloutResult
from practicum.harnesses.runner import RolloutLimits
from practicum.store import Store, open_store
from practicum.types.rollouts import Rollout


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "practicum.db") as opened:
        yield opened


async def still_runs(world: World) -> None:
    (one,) = await world.service.collect(await world.service.submit(task()), wait_s=20)
    assert (one.rollout.cause, one.reward) == ("finished", 1.0)
    assert world.folders_left() == []


def broken(rollouts: Sequence[Rollout]) -> bool:
    return bool(rollouts[99])


async def test_a_condition_that_raises_ends_its_group_and_says_so(tmp_path: Path, store: Store) -> None:
    async with World(tmp_path, store, limits=RolloutLimits(run=1, ready=1)) as world:
        group_id = await world.service.submit(task(num_samples=6), until=broken)
        results = await world.service.collect(group_id, wait_s=20)
        causes = [one.rollout.cause for one in results]
        assert len(results) == 6 and set(causes) == {"finished", "cancelled"}
        called_off = [one.rollout.error for one in results if one.rollout.cause == "cancelled"]
        assert set(called_off) == {"`until` failed: IndexError: tuple index out of range"}
        await still_runs(world)


class FailsOnce(Store):
    """A store with a fault of the program's own, once, in `verb`, for the first rollout that gets there."""

    verb = ""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.failed: list[str] = []

    def _fail(self, verb: str) -> None:
        if self.verb == verb and not self.failed:
            self.failed.append(verb)
            raise LookupError(f"a fault in {verb}")

    def revoke_session_keys(self, session_id: str, at: float) -> Any:
        self._fail("revoke_session_keys")
        return super().revoke_session_keys(session_id, at)

    def put_key(self, *args: Any) -> Any:
        self._fail("put_key")
        return super().put_key(*args)

    def rollout_states(self, group_id: str) -> Any:
        self._fail("rollout_states")
        return super().rollout_states(group_id)


@pytest.mark.parametrize("verb", ["put_key", "revoke_session_keys"])
async def test_a_fault_of_ours_costs_one_rollout_and_no_other(tmp_path: Path, store: Store, verb: str) -> None:
    with FailsOnce(store.path) as failing:
        failing.verb = verb
        async with World(tmp_path, failing) as world:
            results = await world.service.collect(await world.service.submit(task(num_samples=3)), wait_s=20)
            failed = ("interrupted", f"the service failed: LookupError: a fault in {verb}")
            assert sorted(map(outcome, results), key=str) == [("finished", None), ("finished", None), failed]
            await still_runs(world)


def outcome(one: RolloutResult) -> tuple[str | None, str | None]:
    assert (one.reward is None) == (one.rollout.cause == "interrupted")
    return one.rollout.cause, one.rollout.error


async def test_a_service_that_cannot_begin_lets_go_of_the_queue(tmp_path: Path, store: Store) -> None:
    async with World(tmp_path, store) as world:
        group_id = await world.service.submit(task("sleeps"))
    with FailsOnce(store.path) as failing:
        failing.verb = "rollout_states"
        before = asyncio.all_tasks()
        with pytest.raises(LookupError):
            await world_of(tmp_path, failing)
        assert asyncio.all_tasks() == before, "its own have ended"
    async with World(tmp_path, store) as world:
        await world.service.cancel(group_id)
        await still_runs(world)


async def world_of(home: Path, store: Store) -> None:
    """The service alone: nothing of it needs the gateway before a rollout runs."""
    await World(home, store).service.__aenter__()
