"""Who is asking: the principal behind an API key, and what the key may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["sample", "feedback", "rollout", "admin"]
SCOPES: frozenset[Scope] = frozenset({"sample", "feedback", "rollout", "admin"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The holder of a key. `name` says whose calls and feedback they are; several keys may share it.

    A key may do what its scopes say; `admin` may do everything. A key made for one rollout has a `session_id`: every
    call with it is that session's, and an answer that cannot be recorded is not given.
    """

    key_id: str
    name: str
    scopes: frozenset[Scope]
    session_id: str | None = None

    def may(self, scope: Scope) -> bool:
        """Whether the key has this scope."""
        return scope in self.scopes or "admin" in self.scopes


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """An API key as it is listed; the key itself is known to its holder only."""

    key_id: str
    principal: str
    scopes: frozenset[Scope]
    created_at: float
    revoked_at: float | None = None
    session_id: str | None = None
