"""Rollouts in the store: groups, their rollouts, what happened to each, and what graders said.

A rollout's row holds where it stands; its events are appended and never changed. A change is made together with the
event that records it, only while the rollout has not ended and is at the attempt that its writer believes in: so each
rollout ends once, and a writer left over from an earlier attempt changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from practicum.errors import Conflict, NotFound
from practicum.store.codec import (
    JSON,
    PLAIN,
    TEXT,
    Codec,
    decode_json,
    decode_row,
    decode_text,
    encode_json,
    encode_text,
)
from practicum.types.outcomes import Outcome
from practicum.types.rollouts import Attempt, Cause, Group, Rollout, RolloutState, StageTime, Task, Timeouts

_ROLLOUT: dict[str, Codec] = {
    "rollout_id": PLAIN,
    "group_id": PLAIN,
    "position": PLAIN,
    "state": PLAIN,
    "instructions": JSON,
    "attempt": PLAIN,
    "session_id": TEXT,
    "turns_done": PLAIN,
    "cause": PLAIN,
    "error": TEXT,
    "output": TEXT,
    "created_at": PLAIN,
    "ended_at": PLAIN,
}
_CHANGEABLE = frozenset({*_ROLLOUT} - {"rollout_id", "group_id", "position", "created_at"})
_COLUMNS = ", ".join(_ROLLOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutEvent:
    """What happened to a rollout in `attempt`. `event_id` is made by the writer: writing it again changes nothing."""

    event_id: str
    rollout_id: str
    attempt: int
    kind: str
    at: float
    detail: Mapping[str, Any] = field(default_factory=dict)


def submit(connection: Any, group: Group, submission: str, rollout_ids: Sequence[str]) -> Group:
    """Add a group with its rollouts, or return the one that this principal submitted under the same key.

    Raises: Conflict where that one's task is another.
    """
    known = connection.execute(
        "SELECT group_id FROM rollout_groups WHERE principal = ? AND submission = ?",
        (encode_text(group.principal), encode_text(submission)),
    ).get
    if known is not None:
        earlier = require_group(connection, known)
        if asdict(earlier.task) != decode_json(encode_json(asdict(group.task))) | {
            "instructions": group.task.instructions
        }:
            raise Conflict(
                f"The submission key {submission!r} was used for another task.",
                hint="Send the same task, or choose another key.",
                param="submission_key",
                code="key_reused",
            )
        return earlier
    connection.execute(
        "INSERT INTO rollout_groups (group_id, principal, submission, task, created_at, callback)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (
            group.group_id,
            encode_text(group.principal),
            encode_text(submission),
            encode_json(asdict(group.task)),
            group.created_at,
            group.callback,
        ),
    )
    instructions = encode_json(list(group.task.instructions))
    connection.executemany(
        "INSERT INTO rollouts (rollout_id, group_id, position, state, instructions, created_at)"
        " VALUES (?, ?, ?, 'queued', ?, ?)",
        [
            (rollout_id, group.group_id, position, instructions, group.created_at)
            for position, rollout_id in enumerate(rollout_ids)
        ],
    )
    return require_group(connection, group.group_id)


def change(
    connection: Any, event: RolloutEvent, changes: Mapping[str, Any], outcomes: Sequence[Outcome], attempt: int | None
) -> bool:
    """Append an event and change the row with it; False where the rollout has ended or is at another attempt.

    Args:
        connection: the writer's.
        event: what is recorded.
        changes: columns of the row.
        outcomes: what graders said; they stand for good.
        attempt: the attempt that the row must be at, None for any.

    Raises: NotFound.
    """
    if unknown := set(changes) - _CHANGEABLE:
        raise ValueError(f"no such columns: {unknown}")
    if connection.execute("SELECT 1 FROM rollout_events WHERE event_id = ?", (event.event_id,)).get:
        return True  # a commit that was reported as failed and had gone through
    rows = connection.execute(
        "SELECT state, attempt FROM rollouts WHERE rollout_id = ?", (event.rollout_id,)
    ).fetchall()
    if not rows:
        raise NotFound(f"There is no rollout {event.rollout_id!r}.")
    state, current = rows[0]
    if state == "ended" or (attempt is not None and attempt != current):
        return False
    if changes:
        values = {k: None if v is None else _ROLLOUT[k].encode(v) for k, v in changes.items()}
        connection.execute(
            f"UPDATE rollouts SET {', '.join(f'{name} = :{name}' for name in values)} WHERE rollout_id = :rollout",
            {**values, "rollout": event.rollout_id},
        )
    _append(connection, event)
    connection.executemany(
        "INSERT INTO rollout_outcomes VALUES (?, ?, ?, ?, ?, ?)",
        [
            (event.rollout_id, n, encode_text(o.name), o.reward, encode_text(o.reason), encode_text(o.by))
            for n, o in enumerate(outcomes)
        ],
    )
    return True


def set_callback(connection: Any, group_id: str, callback: str) -> None:
    """Note what became of telling a group's end."""
    connection.execute("UPDATE rollout_groups SET callback = ? WHERE group_id = ?", (callback, group_id))


def untold(connection: Any) -> list[str]:
    """Groups that somebody wants to be told of and has not been."""
    return [row[0] for row in connection.execute("SELECT group_id FROM rollout_groups WHERE callback = 'pending'")]


def groups_of(connection: Any, principal: str | None, limit: int) -> list[Group]:
    """The newest groups, newest first, without their rollouts; one principal's where given."""
    rows = connection.execute(
        "SELECT group_id, principal, task, created_at, callback FROM rollout_groups"
        " WHERE :principal IS NULL OR principal = :principal ORDER BY seq DESC LIMIT :limit",
        {"principal": None if principal is None else encode_text(principal), "limit": limit},
    ).fetchall()
    return [_group(row, ()) for row in rows]


def require_group(connection: Any, group_id: str) -> Group:
    """A group with its rollouts. Raises NotFound."""
    rows = connection.execute(
        "SELECT group_id, principal, task, created_at, callback FROM rollout_groups WHERE group_id = ?", (group_id,)
    ).fetchall()
    if not rows:
        raise NotFound(f"There is no group of rollouts {group_id!r}.", param="group_id")
    task = _task(decode_json(rows[0][2]))
    return _group(rows[0], _rollouts(connection, task, "group_id = ? ORDER BY position", (group_id,)))


def require_rollout(connection: Any, rollout_id: str) -> Rollout:
    """One rollout. Raises NotFound."""
    rows = connection.execute(
        "SELECT g.task FROM rollouts r JOIN rollout_groups g USING (group_id) WHERE rollout_id = ?", (rollout_id,)
    ).fetchall()
    if not rows:
        raise NotFound(f"There is no rollout {rollout_id!r}.", param="rollout_id")
    return _rollouts(connection, _task(decode_json(rows[0][0])), "rollout_id = ?", (rollout_id,))[0]


def session_harnesses(connection: Any, session_ids: Iterable[str]) -> dict[str, str]:
    """The harness of the task, for those sessions that a rollout's attempts have had. An attempt's session is the
    rollout's id, or that and the attempt's number behind a dot.
    """
    rollout_of = {session: session.partition(".")[0] for session in session_ids}
    rows = connection.execute(
        "SELECT r.rollout_id, g.group_id, g.task FROM rollouts r JOIN rollout_groups g USING (group_id)"
        " WHERE r.rollout_id IN (SELECT value FROM json_each(?))",
        (json.dumps(sorted(set(rollout_of.values()))),),
    )
    harness_of: dict[str, str] = {}
    of_group: dict[str, str] = {}
    for rollout_id, group_id, task in rows:
        if group_id not in of_group:
            of_group[group_id] = str(decode_json(task)["harness"])
        harness_of[rollout_id] = of_group[group_id]
    return {session: harness_of[rollout] for session, rollout in rollout_of.items() if rollout in harness_of}


def states(connection: Any, group_id: str) -> list[tuple[str, RolloutState, Cause | None]]:
    """`(rollout_id, state, cause)` of a group's rollouts: those that have ended, in the order in which they did, first.

    Nothing happens to a rollout behind its end, so its last event is its end.
    """
    return list(
        connection.execute(
            "SELECT rollout_id, state, cause FROM rollouts r WHERE group_id = ? ORDER BY state <> 'ended',"
            " (SELECT max(e.seq) FROM rollout_events e WHERE e.rollout_id = r.rollout_id), position",
            (group_id,),
        )
    )


def under_way(connection: Any) -> list[tuple[str, str]]:
    """`(group_id, rollout_id)` of every rollout that has not ended, in order of submission."""
    return list(connection.execute("SELECT group_id, rollout_id FROM rollouts WHERE state <> 'ended' ORDER BY seq"))


def events(connection: Any, rollout_id: str) -> list[RolloutEvent]:
    """What happened to a rollout, oldest first."""
    rows = connection.execute(
        "SELECT event_id, rollout_id, attempt, kind, at, detail FROM rollout_events WHERE rollout_id = ? ORDER BY seq",
        (rollout_id,),
    )
    return [
        RolloutEvent(event_id=e, rollout_id=r, attempt=a, kind=k, at=t, detail=decode_json(d))
        for e, r, a, k, t, d in rows
    ]


def _append(connection: Any, event: RolloutEvent) -> None:
    connection.execute(
        "INSERT INTO rollout_events (event_id, rollout_id, attempt, kind, at, detail) VALUES (?, ?, ?, ?, ?, ?)",
        (
            event.event_id,
            event.rollout_id,
            event.attempt,
            event.kind,
            event.at,
            encode_json(dict(event.detail)),
        ),
    )


def _rollouts(connection: Any, task: Task, where: str, values: tuple[Any, ...]) -> tuple[Rollout, ...]:
    rows = connection.execute(f"SELECT {_COLUMNS} FROM rollouts WHERE {where}", values).fetchall()
    return tuple(_rollout(connection, task, decode_row(row, _ROLLOUT)) for row in rows)


def _rollout(connection: Any, task: Task, row: dict[str, Any]) -> Rollout:
    happened = events(connection, row["rollout_id"]) if row["attempt"] else []
    said = connection.execute(
        "SELECT name, reward, reason, given_by FROM rollout_outcomes WHERE rollout_id = ? ORDER BY position",
        (row["rollout_id"],),
    )
    return Rollout(
        **{name: value for name, value in row.items() if name not in ("position", "instructions")},
        index=row["position"],
        instructions=tuple(row["instructions"]),
        task_id=task.task_id,
        role=task.role,
        outcomes=tuple(
            Outcome(name=decode_text(n), reward=r, reason=decode_text(why), by=decode_text(by))
            for n, r, why, by in said
        ),
        attempts=tuple(_lost(happened)),
        stages=tuple(StageTime(attempt=e.attempt, **e.detail) for e in happened if e.kind == "stage"),
    )


def _lost(happened: Iterable[RolloutEvent]) -> Iterable[Attempt]:
    for event in happened:
        if event.kind == "attempt_lost":
            yield Attempt(number=event.attempt, ended_at=event.at, **event.detail)


def _group(row: Sequence[Any], rollouts: tuple[Rollout, ...]) -> Group:
    group_id, principal, task, created_at, callback = row
    return Group(
        group_id=group_id,
        principal=decode_text(principal),
        task=_task(decode_json(task)),
        created_at=created_at,
        callback=callback,
        rollouts=rollouts,
    )


def _task(stored: dict[str, Any]) -> Task:
    return Task(
        **{
            **stored,
            "instructions": tuple(stored["instructions"]),
            "timeouts": Timeouts(**stored["timeouts"]),
        }
    )
