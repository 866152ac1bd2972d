"""API keys: make, look up, revoke. The plaintext is returned once and kept nowhere.

A lookup compares HMAC digests under the store's own secret, so a stolen file reveals no key, and the time that a
lookup takes says nothing about one.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Iterable

from practicum.errors import NotFound, UsageError
from practicum.store.store import Store
from practicum.types.ids import new_id
from practicum.types.principals import SCOPES, KeyRecord, Principal, Scope

_PREFIX = "pk_"
_SECRET_BYTES = 30  # 40 url-safe characters


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


def revoke(store: Store, key_id: str) -> None:
    """Make a key useless from now on. Raises NotFound."""
    if not store.revoke_key(key_id, time.time()).result():
        raise NotFound(f"There is no key {key_id!r}.", hint="`list_keys` shows them.")


def list_keys(store: Store) -> list[KeyRecord]:
    """All keys, oldest first, revoked ones too."""
    return store.keys()


def _digest(store: Store, plaintext: str) -> bytes:
    return hmac.digest(store.key_secret, plaintext.encode("utf-8", "surrogatepass"), "sha256")
