"""Rollouts in the store: one end each, writers of earlier attempts shut out, repeats harmless."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from practicum.errors import Conflict, NotFound
from practicum.store import RolloutEvent, Store, open_store
from practicum.types.outcomes import Outcome
from practicum.types.rollouts import Group, Task, Timeouts

TASK = Task(
    task_id="t",
    instructions=("a \ud800 b", "c"),
    harness="h",
    options={"b": 1, "a": [1, None]},
    graders={"z": {"x": 0.5}, "a": {}},
    timeouts=Timeouts(agent_s=7.0),
    num_samples=2,
)
GROUP = Group(group_id="group_1", principal="team", task=TASK, created_at=1.0, callback="pending")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "practicum.db") as opened:
        opened.submit_rollouts(GROUP, "k", ["r1", "r2"]).result()
        yield opened


def event(kind: str, attempt: int, number: int = 0, **detail: Any) -> RolloutEvent:
    return RolloutEvent(
        event_id=f"{kind}{attempt}{number}", rollout_id="r1", attempt=attempt, kind=kind, at=2.0, detail=detail
    )


def test_a_task_comes_back_as_it_went(store: Store) -> None:
    group = store.get_group("group_1")
    assert group.task == TASK
    assert list(group.task.graders) == ["z", "a"]  # the order says whose reward counts
    assert [(one.rollout_id, one.index, one.state) for one in group.rollouts] == [
        ("r1", 0, "queued"),
        ("r2", 1, "queued"),
    ]
    assert store.rollouts_under_way() == [("group_1", "r1"), ("group_1", "r2")]
    assert store.untold_groups() == ["group_1"]


def test_a_session_of_a_rollout_knows_the_tasks_harness(store: Store) -> None:
    assert store.session_harnesses(["r1", "r2.3", "other", "r9"]) == {"r1": "h", "r2.3": "h"}
    assert store.session_harnesses([]) == {}


def test_submitting_again_gives_the_first_and_another_task_a_conflict(store: Store) -> None:
    again = Group(group_id="group_2", principal="team", task=TASK, created_at=9.0)
    assert store.submit_rollouts(again, "k", ["r3", "r4"]).result().group_id == "group_1"
    other = Group(
        group_id="group_2", principal="team", task=Task(task_id="t", instructions=("x",), harness="h"), created_at=9.0
    )
    with pytest.raises(Conflict):
        store.submit_rollouts(other, "k", ["r3"]).result()
    assert store.submit_rollouts(other, "l", ["r3"]).result().group_id == "group_2"
    assert [group.group_id for group in store.groups("team")] == ["group_2", "group_1"]
    assert store.groups("other") == []


def test_a_rollout_ends_once(store: Store) -> None:
    begin = event("attempt", 1, session_id="r1")
    assert store.change_rollout(begin, {"state": "running", "attempt": 1, "session_id": "r1"}, attempt=0).result()
    assert store.change_rollout(
        begin, {"state": "running", "attempt": 1}, attempt=0
    ).result()  # reported as failed before
    stage = event("stage", 1, stage="run", started_at=2.0, wall_s=3.0, stalled_s=1.0)
    assert store.change_rollout(stage, {}, attempt=1).result()
    outcomes = [Outcome(name="a", reward=0.25, by="z"), Outcome(name="b", reward=None, reason="hung", by="a")]
    end = {"state": "ended", "cause": "finished", "ended_at": 3.0}
    assert store.change_rollout(event("ended", 1), end, outcomes, attempt=1).result()
    assert store.change_rollout(event("ended", 1), end, outcomes, attempt=1).result()
    assert not store.change_rollout(event("ended", 1, 1), {**end, "cause": "cancelled"}, attempt=1).result()
    found = store.get_rollout("r1")
    assert (found.cause, found.reward, found.outcomes, found.stages[0].agent_s) == (
        "finished",
        0.25,
        tuple(outcomes),
        2.0,
    )
    assert [one.kind for one in store.rollout_events("r1")] == ["attempt", "stage", "ended"]
    assert store.rollout_states("group_1") == [("r1", "ended", "finished"), ("r2", "queued", None)]


def test_a_writer_of_an_earlier_attempt_changes_nothing(store: Store) -> None:
    store.change_rollout(event("attempt", 1), {"attempt": 1}, attempt=0).result()
    lost = event("attempt_lost", 1, session_id="r1", cause="sandbox_failed", error="full")
    store.change_rollout(lost, {"state": "queued"}, attempt=1).result()
    store.change_rollout(event("attempt", 2), {"attempt": 2, "state": "running"}, attempt=1).result()
    assert not store.change_rollout(event("ended", 1), {"state": "ended", "cause": "finished"}, attempt=1).result()
    found = store.get_rollout("r1")
    assert (found.state, [(one.number, one.cause, one.error) for one in found.attempts]) == (
        "running",
        [(1, "sandbox_failed", "full")],
    )


def test_what_is_not_there_is_not_found(store: Store) -> None:
    for read in (store.get_group, store.get_rollout):
        with pytest.raises(NotFound):
            read("none")
    with pytest.raises(NotFound):
        store.change_rollout(
            RolloutEvent(event_id="e", rollout_id="none", attempt=0, kind="x", at=1.0), {"state": "ended"}
        ).result()
    assert store.rollout_states("none") == []
