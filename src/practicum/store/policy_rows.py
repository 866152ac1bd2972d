"""Policy versions, the live pointer and the decisions in the store.

The pointer moves only together with a decision record and the two statuses, in one transaction. What a decision means:

- promote: `version` goes from candidate to live, `previous`, the live one, to retired.
- refuse: `version` goes from candidate to refused; the pointer stays.
- rollback: `version` is where to go back to: it goes from retired or withdrawn to live, and `previous`, the live one,
  to withdrawn.

A candidate that nobody is to decide about can be dropped: it keeps its record and can never go live.

It must not know adapter files; whoever moves the pointer checks their digest first.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from practicum.errors import Conflict, NotFound
from practicum.store.codec import PLAIN, TEXT, Codec, decode_json, decode_row, encode_json, encode_row
from practicum.types.policies import Decision, GateCheck, PolicyStatus, PolicyVersion

_FIELDS: dict[str, Codec] = {
    "version": PLAIN,
    "parent": PLAIN,
    "status": PLAIN,
    "adapter_path": TEXT,
    "digest": PLAIN,
    "created_at": PLAIN,
    "run_id": TEXT,
    "note": TEXT,
}
_COLUMNS = ", ".join(_FIELDS)


def reserve_number(connection: Any, registration_id: str) -> int:
    """The version number of a registration; the next free one where it has none."""
    connection.execute(
        "INSERT INTO policy_numbers (registration_id) VALUES (?) ON CONFLICT (registration_id) DO NOTHING",
        (registration_id,),
    )
    query = "SELECT version FROM policy_numbers WHERE registration_id = ?"
    return int(connection.execute(query, (registration_id,)).get)


def add(connection: Any, policy: PolicyVersion) -> None:
    """Add a version, whole. Raises NotFound where its parent is not on record."""
    if policy.parent is not None:
        _require(connection, policy.parent)
    connection.execute(
        f"INSERT INTO policies ({_COLUMNS}) VALUES ({', '.join('?' * len(_FIELDS))}) ON CONFLICT (version) DO NOTHING",
        encode_row(policy, _FIELDS),
    )


def get(connection: Any, version: int) -> PolicyVersion | None:
    """One version."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM policies WHERE version = ?", (version,)).fetchall()
    return PolicyVersion(**decode_row(rows[0], _FIELDS)) if rows else None


def select(connection: Any) -> list[PolicyVersion]:
    """All versions, in order."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM policies ORDER BY version")
    return [PolicyVersion(**decode_row(row, _FIELDS)) for row in rows]


def live(connection: Any) -> PolicyVersion:
    """The version behind the live pointer."""
    version = int(connection.execute("SELECT version FROM pointers WHERE name = 'live'").get)
    return _require(connection, version)


def decisions(connection: Any, version: int | None) -> list[Decision]:
    """Decisions, oldest first; only those about `version` where it is given."""
    rows = connection.execute(
        "SELECT record FROM decisions WHERE :version IS NULL OR version = :version ORDER BY seq", {"version": version}
    )
    return [_decode_decision(record) for (record,) in rows]


def apply_decision(connection: Any, decision: Decision) -> PolicyVersion:
    """Record a decision and do what it says; returns the version that is live afterwards.

    A decision that is on record already changes nothing. Raises: NotFound; Conflict where the state does not allow it.
    """
    rows = connection.execute("SELECT record FROM decisions WHERE decision_id = ?", (decision.decision_id,)).fetchall()
    if rows:
        if rows[0][0] != _encode_decision(decision):
            raise Conflict(f"Decision {decision.decision_id} is on record with another content.")
        return live(connection)
    subject, current = _require(connection, decision.version), live(connection)
    _check(decision, subject, current)
    connection.execute(
        "INSERT INTO decisions (decision_id, version, record) VALUES (?, ?, ?)",
        (decision.decision_id, decision.version, _encode_decision(decision)),
    )
    if decision.verdict == "refuse":
        _set_status(connection, subject.version, "refused")
        return current
    _set_status(connection, current.version, "retired" if decision.verdict == "promote" else "withdrawn")
    _set_status(connection, subject.version, "live")
    connection.execute("UPDATE pointers SET version = ? WHERE name = 'live'", (subject.version,))
    return live(connection)


def drop(connection: Any, version: int) -> None:
    """A candidate becomes dropped; one that is stays so. Raises NotFound; Conflict for any other version."""
    status = _require(connection, version).status
    if status not in ("candidate", "dropped"):
        raise Conflict(f"Version {version} is {status}; only a candidate can be dropped.")
    _set_status(connection, version, "dropped")


def _check(decision: Decision, subject: PolicyVersion, current: PolicyVersion) -> None:
    name = f"Version {subject.version}"
    if decision.verdict != "refuse" and decision.previous != current.version:
        raise Conflict(
            f"Version {current.version} is live, but the decision replaces version {decision.previous}.",
            hint="Compare with the live version and decide again.",
            code="stale_decision",
        )
    if decision.verdict in ("promote", "refuse") and subject.status != "candidate":
        raise Conflict(f"{name} is {subject.status}; only a candidate can be promoted or refused.")
    if decision.verdict == "rollback" and subject.status not in ("retired", "withdrawn"):
        raise Conflict(
            f"{name} is {subject.status}; a rollback goes to a version that was live before.",
            hint="`practicum release list` shows which were.",
        )


def _require(connection: Any, version: int) -> PolicyVersion:
    found = get(connection, version)
    if found is None:
        raise NotFound(f"There is no policy version {version}.", hint="`practicum release list` shows them.")
    return found


def _set_status(connection: Any, version: int, status: PolicyStatus) -> None:
    connection.execute("UPDATE policies SET status = ? WHERE version = ?", (status, version))


def _encode_decision(decision: Decision) -> str | bytes:
    return encode_json(asdict(decision))


def _decode_decision(record: str | bytes) -> Decision:
    values = decode_json(record)
    names = {field.name for field in fields(Decision)}
    checks = tuple(GateCheck(**check) for check in values.pop("checks"))
    return Decision(checks=checks, **{name: value for name, value in values.items() if name in names})
