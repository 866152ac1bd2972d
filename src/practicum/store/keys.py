"""API keys: make, look up, revoke. The plaintext is returned once and kept nowhere.

A lookup compares HMAC digests under the store's own secret, so a stolen file reveals no key, and the time that a
lookup takes says nothing about one. `Holders` remembers for a moment what it looked up: a key that this process revokes
is useless at once, one that another process revokes within a second.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from practicum.errors import NotFound, UsageError
from practicum.store.store import Store
from practicum.types.ids import new_id
from practicum.types.principals import SCOPES, KeyRecord, Principal, Scope

_PREFIX = "pk_"
_SECRET_BYTES = 30  # 40 url-safe characters
_REMEMBERED_S = 1.0
_MOST_REMEMBERED = 1000


def create_key(store: Store, principal: str, scopes: Iterable[Scope], *, session_id: str | None = None) -> str:
    """A new key for `principal`: `pk_` and 40 url-safe characters. All calls with it are `session_id`'s where given.

    Raises: UsageError for an empty or slashed name, or scopes that do not exist.
    """
    wanted = frozenset(scopes)
    if unknown := sorted(wanted - SCOPES):
        raise UsageError(f"There is no scope {unknown[0]!r}.", hint=f"Scopes are {', '.join(sorted(SCOPES))}.")
    if not wanted:
        raise UsageError("A key needs at least one scope.", hint=f"Scopes are {', '.join(sorted(SCOPES))}.")
    if not principal.strip() or "/" in principal:
        raise UsageError(
            f"{principal!r} cannot name a principal.",
            hint="Use a non-empty name without `/`, which separates a principal from its users.",
        )
    plaintext = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    record = KeyRecord(
        key_id=new_id("key"), principal=principal, scopes=wanted, created_at=time.time(), session_id=session_id
    )
    store.put_key(record, _digest(store, plaintext)).result()
    return plaintext


def lookup(store: Store, plaintext: str) -> Principal | None:
    """Who holds this key, or None for a malformed, unknown or revoked one."""
    if not plaintext.startswith(_PREFIX):
        return None
    return store.find_key(_digest(store, plaintext))


@dataclass(frozen=True, slots=True)
class _Holder:
    principal: Principal
    revocations: int
    until_s: float


class Holders:
    """`lookup` for every request: busy keys are read once a second. `clock` gives monotonic seconds.

    A read lets the writer's thread in between, which costs a busy server far more than the read itself.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[bytes, _Holder] = {}

    def __call__(self, plaintext: str) -> Principal | None:
        """Who holds this key. Raises StoreError."""
        mark = hashlib.sha256(plaintext.encode("utf-8", "surrogatepass")).digest()
        now_s, revocations = self._clock(), self._store.revocations  # before the read, which a revocation may follow
        known = self._known.get(mark)
        if known is not None and known.revocations == revocations and now_s < known.until_s:
            return known.principal
        principal = lookup(self._store, plaintext)
        if principal is None:
            self._known.pop(mark, None)
            return None
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[mark] = _Holder(principal, revocations, now_s + _REMEMBERED_S)
        return principal


def revoke(store: Store, key_id: str) -> None:
    """Make a key useless from now on. Raises NotFound."""
    if not store.revoke_key(key_id, time.time()).result():
        raise NotFound(f"There is no key {key_id!r}.", hint="`list_keys` shows them.")


def list_keys(store: Store) -> list[KeyRecord]:
    """All keys, oldest first, revoked ones too."""
    return store.keys()


def _digest(store: Store, plaintext: str) -> bytes:
    return hmac.digest(store.key_secret, plaintext.encode("utf-8", "surrogatepass"), "sha256")
