"""Learning runs, their finished steps, and leases in the store.

A step's first output stands: finishing it again returns what is on record, so a resumed run and a repeated write agree.
A lease has one holder; its token grows with each, and a write that carries an outdated one is refused. Times are the
caller's wall clock: one that jumps can end a lease early, which the token makes harmless.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from practicum.errors import Conflict, NotFound
from practicum.store.codec import JSON, PLAIN, Codec, decode_row, encode_json
from practicum.types.runs import Lease, Run, RunStep

_RUN: dict[str, Codec] = {"run_id": PLAIN, "state": PLAIN, "created_at": PLAIN, "updated_at": PLAIN, "config": JSON}
_STEP: dict[str, Codec] = {"run_id": PLAIN, "step": PLAIN, "seq": PLAIN, "output": JSON, "at": PLAIN}


def create(connection: Any, run_id: str, state: str, config: Mapping[str, Any], at: float) -> Run:
    """Add a run; one that is on record stays as it is."""
    connection.execute(
        "INSERT INTO runs (run_id, state, created_at, updated_at, config) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (run_id) DO NOTHING",
        (run_id, state, at, at, encode_json(dict(config))),
    )
    return _require(connection, run_id)


def set_state(connection: Any, run_id: str, state: str, at: float, fence: Lease | None) -> Run:
    """Move a run to another state. Raises NotFound; Conflict for a lost lease."""
    check_fence(connection, fence)
    connection.execute("UPDATE runs SET state = ?, updated_at = ? WHERE run_id = ?", (state, at, run_id))
    return _require(connection, run_id)


def finish_step(connection: Any, run_id: str, step: str, output: Any, at: float, fence: Lease | None) -> RunStep:
    """Record a step's output, or return the one on record. Raises NotFound; Conflict for a lost lease."""
    check_fence(connection, fence)
    _require(connection, run_id)
    connection.execute(
        "INSERT INTO run_steps SELECT :run, :step, count(*) + 1, :output, :at FROM run_steps WHERE run_id = :run"
        " ON CONFLICT (run_id, step) DO NOTHING",
        {"run": run_id, "step": step, "output": encode_json(output), "at": at},
    )
    connection.execute("UPDATE runs SET updated_at = ? WHERE run_id = ?", (at, run_id))
    return next(found for found in steps(connection, run_id) if found.step == step)


def steps(connection: Any, run_id: str) -> list[RunStep]:
    """A run's finished steps, in order."""
    rows = connection.execute(f"SELECT {', '.join(_STEP)} FROM run_steps WHERE run_id = ? ORDER BY seq", (run_id,))
    return [RunStep(**decode_row(row, _STEP)) for row in rows]


def get(connection: Any, run_id: str) -> Run | None:
    """One run."""
    rows = connection.execute(f"SELECT {', '.join(_RUN)} FROM runs WHERE run_id = ?", (run_id,)).fetchall()
    return Run(**decode_row(rows[0], _RUN)) if rows else None


def select(connection: Any) -> list[Run]:
    """All runs, oldest first."""
    return [
        Run(**decode_row(row, _RUN)) for row in connection.execute(f"SELECT {', '.join(_RUN)} FROM runs ORDER BY seq")
    ]


def acquire_lease(connection: Any, name: str, owner: str, ttl_s: float, now: float) -> Lease | None:
    """Take a lease that is free, expired or the owner's own; None where another holds it."""
    held = get_lease(connection, name)
    if held is not None and held.owner != owner and held.expires_at > now:
        return None
    same = held is not None and held.owner == owner and held.expires_at > now
    token = held.token + (0 if same else 1) if held else 1
    connection.execute(
        "INSERT INTO leases VALUES (:name, :owner, :token, :expires) ON CONFLICT (name)"
        " DO UPDATE SET owner = :owner, token = :token, expires_at = :expires",
        {"name": name, "owner": owner, "token": token, "expires": now + ttl_s},
    )
    return Lease(name=name, owner=owner, token=token, expires_at=now + ttl_s)


def renew_lease(connection: Any, lease: Lease, ttl_s: float, now: float) -> Lease | None:
    """Hold a lease for longer; None where another has taken it. One that expired untaken is renewed."""
    held = get_lease(connection, lease.name)
    if held is None or held.token != lease.token or held.owner != lease.owner:
        return None
    connection.execute("UPDATE leases SET expires_at = ? WHERE name = ?", (now + ttl_s, lease.name))
    return Lease(name=lease.name, owner=lease.owner, token=lease.token, expires_at=now + ttl_s)


def release_lease(connection: Any, lease: Lease) -> None:
    """Let go of a lease; the token stays on record, so the next holder's is greater."""
    connection.execute(
        "UPDATE leases SET expires_at = 0, owner = '' WHERE name = ? AND token = ?", (lease.name, lease.token)
    )


def get_lease(connection: Any, name: str) -> Lease | None:
    """Who holds, or last held, a lease."""
    rows = connection.execute("SELECT name, owner, token, expires_at FROM leases WHERE name = ?", (name,)).fetchall()
    return Lease(name=rows[0][0], owner=rows[0][1], token=rows[0][2], expires_at=rows[0][3]) if rows else None


def check_fence(connection: Any, fence: Lease | None) -> None:
    """Raises Conflict where another holder has come since `fence` was taken."""
    if fence is None:
        return
    held = get_lease(connection, fence.name)
    if held is None or held.token != fence.token or held.owner != fence.owner:
        raise Conflict(
            f"The lease {fence.name!r} was lost to another process.", hint="Let that one go on.", code="lease_lost"
        )


def _require(connection: Any, run_id: str) -> Run:
    found = get(connection, run_id)
    if found is None:
        raise NotFound(f"There is no run {run_id!r}.", hint="`practicum runs list` shows them.")
    return found
