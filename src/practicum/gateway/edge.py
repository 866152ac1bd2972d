"""The outermost layer of the application, the same for every route: request id, session prefix, key, limits, errors.

Deny by default: a path that is not listed as open needs a key, whether a route exists for it or not. A body that is too
long or too slow is refused while it arrives. An error leaves in the shape that its caller reads (a provider's, or
`application/problem+json`), and never with a traceback.

It must not know what the routes do.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from practicum.capture.stalls import Stalls
from practicum.dialects import problem
from practicum.errors import PracticumError, RequestError
from practicum.gateway.auth import Lookup, bound_session, identify, remember
from practicum.gateway.endpoints import dialect_of
from practicum.gateway.timing import within
from practicum.types.ids import new_id

_log = logging.getLogger("practicum.gateway")

OPEN_PATHS = frozenset({"/", "/api/hello", "/healthz", "/readyz"})
_SESSION_PREFIX = re.compile(r"/s/([^/]*)(/.*)?")
_URL_SESSION = "practicum.url_session"
_REQUEST_ID = "practicum.request_id"
_REFUSED = "practicum.refused"


class BodyTooLarge(RequestError):
    """The body is longer than the server takes."""

    code = "body_too_large"
    status = 413


class BodyTooSlow(RequestError):
    """The body did not arrive in time."""

    code = "body_too_slow"
    status = 408


class Edge:
    """The ASGI application, around its routes.

    Args:
        app: the routes.
        lookup: holder of a key.
        max_body_bytes: longest body.
        body_timeout_s: time for the whole body to arrive.
        open_paths: paths that need no key; one that ends in `/` opens everything below it.
        direct: what answers a POST to a path at once, without a search through the routes.
        stalls: told of what is refused to a key that is bound to a session.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        lookup: Lookup,
        max_body_bytes: int,
        body_timeout_s: float,
        open_paths: Collection[str] = (),
        direct: Mapping[str, ASGIApp] = MappingProxyType({}),
        stalls: Stalls | None = None,
    ) -> None:
        self._app = app
        self._direct = direct
        self._stalls = stalls
        self._lookup = lookup
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s
        self._open_paths = OPEN_PATHS | frozenset(open_paths)
        self._open_below = tuple(path for path in self._open_paths if path.endswith("/") and path != "/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_id("req")
        scope.setdefault("state", {})[_REQUEST_ID] = request_id
        _take_session(scope)
        started = answered = False

        async def send_marked(message: Message) -> None:
            nonlocal started, answered
            if message["type"] == "http.response.start":
                started = True
                marks = [(b"x-request-id", request_id.encode()), (b"x-content-type-options", b"nosniff")]
                message = {**message, "headers": [*message.get("headers", []), *marks]}
            else:
                answered = not message.get("more_body", False)
            await send(message)

        try:
            if not self._is_open(scope["path"]):
                remember(scope, identify(scope, self._lookup))
            direct = self._direct.get(scope["path"]) if scope["method"] == "POST" else None
            await (direct or self._app)(scope, self._limited(scope, receive), send_marked)
        except Exception as error:
            if answered:  # by the routes' own handler of errors, which raises them again
                return
            if started:
                raise
            await respond(scope, send_marked, error)
        finally:
            self._tell_of_refusal(scope)

    def _tell_of_refusal(self, scope: Scope) -> None:
        refused, session_id = scope["state"].get(_REFUSED), bound_session(scope)
        if self._stalls is not None and refused is not None and session_id is not None:
            self._stalls.refused(session_id, refused)

    def _is_open(self, path: str) -> bool:
        return path in self._open_paths or path.startswith(self._open_below)

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        """`receive`, which counts the body and lets it take so long and no longer."""
        declared = dict(scope["headers"]).get(b"content-length", b"")
        too_long = declared.isdigit() and int(declared[:20]) > self._max_body_bytes
        now = asyncio.get_running_loop().time
        deadline = now() + self._body_timeout_s
        taken, whole = 0, False

        async def limited() -> Message:
            nonlocal taken, whole
            if whole:
                return await receive()
            if too_long:
                raise self._too_large()
            try:
                message = await within(deadline - now(), receive())
            except TimeoutError as error:
                raise BodyTooSlow(f"The body did not arrive within {self._body_timeout_s:g} s.") from error
            taken += len(message.get("body", b""))
            whole = message["type"] != "http.request" or not message.get("more_body", False)
            if taken > self._max_body_bytes:
                raise self._too_large()
            return message

        return limited

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The body is longer than {self._max_body_bytes} bytes.")


def url_session(scope: Scope) -> str | None:
    """The session that the URL named."""
    value = scope.get("state", {}).get(_URL_SESSION)
    return value if isinstance(value, str) else None


async def respond(scope: Scope, send: Send, error: Exception) -> None:
    """Answer with an error, in the caller's shape; one outside the tree is logged and says nothing of itself."""
    request_id = scope.get("state", {}).get(_REQUEST_ID, "")
    if not isinstance(error, PracticumError):
        _log.error("request %s to %s failed", request_id, scope["path"], exc_info=error)
    known = error if isinstance(error, PracticumError) else _internal(request_id)
    if known.status < 500:  # what is the server's own fault is on record or in the log
        told = f"{scope['method']} {scope['path'][:200]}: {known.status} {known.code}: {str(known)[:300]}"
        scope.setdefault("state", {})[_REFUSED] = told
    dialect = dialect_of(scope["path"], scope["headers"])
    document: dict[str, Any] = dialect.error_body(known) if dialect else problem.problem(error, request_id)
    body = json.dumps(document).encode()
    headers = [
        (b"content-type", b"application/json" if dialect else problem.MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        *_error_headers(known.status),
    ]
    await send({"type": "http.response.start", "status": known.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _error_headers(status: int) -> list[tuple[bytes, bytes]]:
    more: dict[int, list[tuple[bytes, bytes]]] = {
        401: [(b"www-authenticate", b"Bearer")],
        408: [(b"connection", b"close")],
        413: [(b"connection", b"close")],
        503: [(b"retry-after", b"1")],
    }
    return more.get(status, [])


def _internal(request_id: str) -> PracticumError:
    return PracticumError(f"The server failed; its log has the reason under {request_id}.", code="internal_error")


def _take_session(scope: Scope) -> None:
    found = _SESSION_PREFIX.fullmatch(scope["path"])
    if found is not None:
        scope["state"][_URL_SESSION] = found[1]
        scope["path"] = found[2] or "/"  # what a harness probes whose base URL is the session's
        scope["raw_path"] = scope["path"].encode("utf-8", "surrogatepass")
