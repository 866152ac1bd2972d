"""API keys in the store: HMAC-SHA256 under a random secret of this store, never the key itself."""

from __future__ import annotations

from typing import Any, cast

from practicum.store.codec import decode_text, encode_text
from practicum.types.principals import KeyRecord, Principal, Scope


def secret(connection: Any) -> bytes:
    """The store's own HMAC secret."""
    return bytes(connection.execute("SELECT value FROM secrets WHERE name = 'key_hmac'").get)


def put(connection: Any, record: KeyRecord, key_hash: bytes) -> None:
    """Add a key."""
    connection.execute(
        "INSERT INTO keys (key_id, key_hash, principal, scopes, created_at, revoked_at, session_id)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key_id) DO NOTHING",
        (
            record.key_id,
            key_hash,
            encode_text(record.principal),
            " ".join(sorted(record.scopes)),
            record.created_at,
            record.revoked_at,
            record.session_id,
        ),
    )


def revoke(connection: Any, key_id: str, at: float) -> bool:
    """Revoke a key; False where there is none. A revoked key keeps its first time."""
    connection.execute("UPDATE keys SET revoked_at = coalesce(revoked_at, ?) WHERE key_id = ?", (at, key_id))
    return bool(connection.changes())


def revoke_for_session(connection: Any, session_id: str, at: float) -> int:
    """Revoke the keys that belong to a session; how many."""
    connection.execute(
        "UPDATE keys SET revoked_at = ? WHERE session_id = ? AND revoked_at IS NULL", (at, encode_text(session_id))
    )
    return int(connection.changes())


def find(connection: Any, key_hash: bytes) -> Principal | None:
    """The principal of a key that is not revoked."""
    rows = connection.execute(
        "SELECT key_id, principal, scopes, session_id FROM keys WHERE key_hash = ? AND revoked_at IS NULL", (key_hash,)
    ).fetchall()
    for key_id, principal, scopes, session_id in rows:
        return Principal(key_id=key_id, name=decode_text(principal), scopes=_scopes(scopes), session_id=session_id)
    return None


def select(connection: Any) -> list[KeyRecord]:
    """All keys, oldest first, revoked ones too."""
    rows = connection.execute(
        "SELECT key_id, principal, scopes, created_at, revoked_at, session_id FROM keys ORDER BY rowid"
    )
    return [
        KeyRecord(
            key_id=key_id,
            principal=decode_text(principal),
            scopes=_scopes(scopes),
            created_at=created_at,
            revoked_at=revoked_at,
            session_id=session_id,
        )
        for key_id, principal, scopes, created_at, revoked_at, session_id in rows
    ]


def _scopes(text: str) -> frozenset[Scope]:
    return frozenset(cast("list[Scope]", text.split()))
