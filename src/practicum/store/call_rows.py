"""Model calls in the store: one row each, opened before the first byte and finished before the last.

A call's final record replaces its open one. A final status never goes back to `open`, and one that the answer's own
writer gave (`complete`, `aborted`, `failed`) never to `interrupted`, which only says that nobody finished the record.
"""

from __future__ import annotations

from typing import Any

from practicum.store.codec import (
    IDS,
    JSON,
    LOGPROBS,
    PLAIN,
    TEXT,
    Codec,
    decode_row,
    decode_text,
    encode_row,
    encode_text,
)
from practicum.types.calls import Asked, CallStatus, ModelCall

FIELDS: dict[str, Codec] = {
    "call_id": TEXT,
    "session_id": TEXT,
    "principal": TEXT,
    "kind": PLAIN,
    "status": PLAIN,
    "created_at": PLAIN,
    "finished_at": PLAIN,
    "policy_version": PLAIN,
    "model": TEXT,
    "temperature": PLAIN,
    "request": JSON,
    "dialect": TEXT,
    "text": TEXT,
    "finish_reason": PLAIN,
    "prompt_ids": IDS,
    "completion_ids": IDS,
    "logprobs": LOGPROBS,
    "sampled_logprobs": LOGPROBS,
    "versions": IDS,
    "parent_call_id": TEXT,
    "episode_id": TEXT,
    "fork_reason": TEXT,
    "prompt_hash": PLAIN,
    "history_hash": PLAIN,
    "error": TEXT,
    "kind_reason": TEXT,
    "harness": TEXT,
    "agent_id": TEXT,
    "session_source": TEXT,
}

_COLUMNS = ", ".join(FIELDS)
_ONE_ROW = f"({', '.join('?' * len(FIELDS))})"
_CONFLICT = f"""
ON CONFLICT (call_id) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in FIELDS if name != "call_id")}
WHERE status = 'open' OR excluded.status NOT IN ('open', 'interrupted')
"""
# Few sizes, so that each statement is compiled once.
_ROWS_A_STATEMENT = (64, 16, 4, 1)
_UPSERTS = {
    size: f"INSERT INTO calls ({_COLUMNS}) VALUES {', '.join([_ONE_ROW] * size)} {_CONFLICT}"
    for size in _ROWS_A_STATEMENT
}
_SELECT = f"SELECT {_COLUMNS} FROM calls"


def put_all(connection: Any, calls: list[ModelCall]) -> None:
    """Insert or finish calls, in order. All become durable at the same moment, so of several records of one call only
    the one that stands in the end is written, at the place of the first.
    """
    standing: dict[str, ModelCall] = {}
    for call in calls:
        before = standing.get(call.call_id)
        if before is None or before.status == "open" or call.status not in ("open", "interrupted"):
            standing[call.call_id] = call
    rows = [encode_row(call, FIELDS) for call in standing.values()]
    for size in _ROWS_A_STATEMENT:
        while len(rows) >= size:
            connection.execute(_UPSERTS[size], [value for row in rows[:size] for value in row])
            del rows[:size]


def interrupt_open(connection: Any, started_before: float) -> int:
    """Mark open calls of an earlier process as interrupted; how many."""
    connection.execute(
        "UPDATE calls SET status = 'interrupted', error = coalesce(error, 'the server stopped before the answer ended')"
        " WHERE status = 'open' AND created_at < ?",
        (started_before,),
    )
    return int(connection.changes())


def get(connection: Any, call_id: str) -> ModelCall | None:
    """The call with this id."""
    return _first(connection, f"{_SELECT} WHERE call_id = ?", (encode_text(call_id),))


def last(connection: Any, session_id: str) -> ModelCall | None:
    """The newest call of a session."""
    return _first(connection, f"{_SELECT} WHERE session_id = ? ORDER BY seq DESC LIMIT 1", (encode_text(session_id),))


def last_turn(connection: Any, session_id: str, agent_id: str | None) -> ModelCall | None:
    """The newest call of one of a session's agents that is no side call."""
    return _first(
        connection,
        f"{_SELECT} WHERE session_id = ? AND agent_id IS ? AND kind <> 'auxiliary' ORDER BY seq DESC LIMIT 1",
        (encode_text(session_id), None if agent_id is None else encode_text(agent_id)),
    )


def by_history(connection: Any, principal: str, history_hash: str, session_id: str, limit: int) -> list[ModelCall]:
    """Calls of a principal after which the conversation is `history_hash`: the session's own, then others.

    Newest first.
    """
    return _all(
        connection,
        f"{_SELECT} WHERE history_hash = ? AND history_hash <> '' AND principal = ? "
        "ORDER BY session_id = ? DESC, seq DESC LIMIT ?",
        (history_hash, encode_text(principal), encode_text(session_id), limit),
    )


def last_asked(connection: Any, principal: str, prompt_hash: str, session_id: str | None) -> Asked | None:
    """Of a principal's newest call whose conversation was `prompt_hash` before the answer, in a session if named."""
    within, session = ("", ()) if session_id is None else (" AND session_id = ?", (encode_text(session_id),))
    row = connection.execute(
        "SELECT session_id, agent_id, status FROM calls "
        f"WHERE prompt_hash = ? AND prompt_hash <> '' AND principal = ?{within} ORDER BY seq DESC LIMIT 1",
        (prompt_hash, encode_text(principal), *session),
    ).fetchone()
    if row is None:
        return None
    session, agent, status = row
    return Asked(session_id=decode_text(session), agent_id=None if agent is None else decode_text(agent), status=status)


def undelivered(connection: Any, newest: int) -> list[tuple[str, str]]:
    """Principal and prompt hash of those of the newest calls that ended without an answer."""
    rows = connection.execute(
        "SELECT principal, prompt_hash FROM calls WHERE seq > (SELECT max(seq) FROM calls) - ? "
        "AND status NOT IN ('complete', 'open') AND prompt_hash <> '' ORDER BY seq",
        (newest,),
    )
    return [(decode_text(principal), prompt_hash) for principal, prompt_hash in rows]


def select(
    connection: Any,
    *,
    session_id: str | None,
    episode_id: str | None,
    status: CallStatus | None,
    since: float | None,
    after: str | None,
    limit: int | None,
    newest_first: bool,
) -> list[ModelCall]:
    """Calls that match, in order of arrival."""
    where: list[str] = []
    values: list[Any] = []
    for condition, value in (
        ("session_id = ?", None if session_id is None else encode_text(session_id)),
        ("episode_id = ?", None if episode_id is None else encode_text(episode_id)),
        ("status = ?", status),
        ("created_at >= ?", since),
        (
            f"seq {'<' if newest_first else '>'} (SELECT seq FROM calls WHERE call_id = ?)",
            None if after is None else encode_text(after),
        ),
    ):
        if value is not None:
            where.append(condition)
            values.append(value)
    clause = f" WHERE {' AND '.join(where)}" if where else ""
    order = "DESC" if newest_first else "ASC"
    values.append(-1 if limit is None else limit)
    return _all(connection, f"{_SELECT}{clause} ORDER BY seq {order} LIMIT ?", tuple(values))


def exists(connection: Any, target_kind: str, target_id: str) -> bool:
    """Whether a call, or a session with at least one call, has this id."""
    column = {"call": "call_id", "session": "session_id"}[target_kind]
    return bool(connection.execute(f"SELECT 1 FROM calls WHERE {column} = ? LIMIT 1", (encode_text(target_id),)).get)


def count(connection: Any) -> int:
    """How many calls there are."""
    return int(connection.execute("SELECT count(*) FROM calls").get)


def _all(connection: Any, sql: str, values: tuple[Any, ...]) -> list[ModelCall]:
    return [ModelCall(**decode_row(row, FIELDS)) for row in connection.execute(sql, values)]


def _first(connection: Any, sql: str, values: tuple[Any, ...]) -> ModelCall | None:
    rows = _all(connection, sql, values)
    return rows[0] if rows else None
