"""Who is asking. One function reads the key from every place where a provider's SDK puts it; no route has its own way.

Deny by default: `Gatekeeper` in `edge.py` calls it for every path that is not listed as open. A store that cannot be
read is an outage and answers 503, never "unknown key". Keys are never logged and never repeated in an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.types import Scope as AsgiScope

from practicum.errors import Forbidden, StoreError, Unauthenticated
from practicum.types.principals import Principal, Scope

# Gives the holder of a key, or None. Called on the event loop for every request: a look into a local store, no more.
Lookup = Callable[[str], Principal | None]

_STATE = "practicum.principal"
_log = logging.getLogger("practicum.gateway.auth")


def keys_in(scope: AsgiScope) -> list[str]:
    """Every key that a request carries, without repeats."""
    return list(dict.fromkeys(key for key in _candidates(scope) if key))


def identify(scope: AsgiScope, lookup: Lookup) -> Principal:
    """The one principal whose key a request carries.

    Raises: Unauthenticated without a key, with an unknown one, or with keys of different holders; StoreError when the
    keys cannot be read.
    """
    keys = keys_in(scope)
    if not keys:
        raise Unauthenticated(
            "No API key was sent.", hint="Send it as `Authorization: Bearer KEY`.", code="missing_api_key"
        )
    try:
        holders = [lookup(key) for key in keys[:4]]
    except StoreError as error:  # its message may name files, and nobody is known yet
        _log.error("keys cannot be read: %s", error)
        raise StoreError("The keys cannot be read at the moment.", hint="Try again.") from error
    first = holders[0]
    if first is None or len(keys) > 4 or any(holder is None or holder.key_id != first.key_id for holder in holders):
        raise Unauthenticated(
            "The API key is not known.", hint="`practicum keys` makes and lists keys.", code="invalid_api_key"
        )
    return first


def remember(scope: AsgiScope, principal: Principal) -> None:
    """Note who is asking, for the routes behind the gatekeeper."""
    scope.setdefault("state", {})[_STATE] = principal


async def authenticate(request: Request) -> Principal:
    """The principal of a request that the gatekeeper let pass; a FastAPI dependency. Raises Unauthenticated."""
    return known(request.scope)


def known(scope: AsgiScope) -> Principal:
    """`authenticate` for an ASGI application."""
    principal = scope.get("state", {}).get(_STATE)
    if not isinstance(principal, Principal):
        raise Unauthenticated("No API key was sent.", hint="Send it as `Authorization: Bearer KEY`.")
    return principal


def bound_session(scope: AsgiScope) -> str | None:
    """The session that the caller's key is for, if it is for one and is known."""
    principal = scope.get("state", {}).get(_STATE)
    return principal.session_id if isinstance(principal, Principal) else None


def require(scope: Scope) -> Callable[[Request], object]:
    """A FastAPI dependency: the principal, if its key has this scope. Raises Forbidden."""

    async def dependency(request: Request) -> Principal:
        principal = await authenticate(request)
        check_scope(principal, scope)
        return principal

    return dependency


def check_scope(principal: Principal, scope: Scope) -> None:
    """Raises Forbidden unless the key has this scope."""
    if not principal.may(scope):
        raise Forbidden(f"This key has no `{scope}` scope.", hint="Use a key that has it.")


def _candidates(scope: AsgiScope) -> Iterator[str]:
    for name, value in scope["headers"]:
        text = value.decode("latin-1").strip()
        if name == b"authorization":
            kind, _, key = text.partition(" ")
            yield key.strip() if kind.lower() == "bearer" else text
        elif name in (b"x-api-key", b"x-goog-api-key"):
            yield text
    if b"key=" in scope.get("query_string", b""):
        yield from parse_qs(scope["query_string"].decode("latin-1")).get("key", [])
