"""Errors on the wire: `application/problem+json` (RFC 9457), for the routes that are ours.

Provider dialects have error shapes of their own. It must not know HTTP frameworks.
"""

from __future__ import annotations

import inspect
from typing import Any

from practicum.errors import PracticumError

MEDIA_TYPE = "application/problem+json"
_TYPE_PREFIX = "urn:practicum:problem:"


def problem(error: Exception, request_id: str) -> dict[str, Any]:
    """The problem document of an error.

    `type`, `title`, `status` and `detail` are the standard's; `code` is stable and machine-readable, `hint` says what
    to do, `param` names the field at fault where there is one. An error outside the tree says nothing of itself: what
    it holds may be private, and `request_id` finds it in the log.
    """
    if not isinstance(error, PracticumError):
        return {
            "type": _TYPE_PREFIX + "internal_error",
            "title": "An error on the server's side.",
            "status": 500,
            "detail": "The server failed; its log has the reason under this request id.",
            "code": "internal_error",
            "request_id": request_id,
        }
    document: dict[str, Any] = {
        "type": _TYPE_PREFIX + error.code,
        "title": _title(type(error)),
        "status": error.status,
        "detail": error.message,
        "code": error.code,
        "request_id": request_id,
    }
    if error.hint:
        document["hint"] = error.hint
    if error.param:
        document["param"] = error.param
    return document


def _title(kind: type[PracticumError]) -> str:
    return (inspect.getdoc(kind) or kind.__name__).partition("\n")[0]
