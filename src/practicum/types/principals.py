"""Who is asking: the principal behind an API key, and what the key may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["sample", "feedback", "admin"]
SCOPES: frozenset[Scope] = frozenset({"sample", "feedback", "admin"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The holder of a key. `name` says whose calls and feedback they are; several keys may share it.

    A key may do what its scopes say; `admin` may do everything. A key with a `session_id` speaks for that session only.
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
