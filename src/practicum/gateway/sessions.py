"""Which session a call belongs to.

In order: the session that the key belongs to, the `/s/ID` prefix of the URL, `x-practicum-session`, a header that the
harness sends by itself, the session of the served answer that the request continues, a new one. An id belongs to the
principal who used it first; another principal's calls under the same id get a session of their own, `NAME/ID`.

It must not know wire bodies.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from practicum.errors import RequestError
from practicum.types.calls import ModelCall
from practicum.types.ids import new_id

Source = Literal["key", "url", "header", "harness", "inferred", "new"]

OWN_HEADER = "x-practicum-session"
# Headers that harnesses send unprompted, most specific first, and who was seen to send them.
HARNESS_HEADERS: dict[str, str] = {
    "x-claude-code-session-id": "Claude Code and its agent SDK",
    "x-session-id": "opencode and Kilo",
    "session-id": "Codex (shared by its sub-agents), pi on the Responses API",
    "x-session-affinity": "opencode and Kilo, beside x-session-id",
    "x-affinity": "Mistral Vibe",
}
_VALID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:~-]{0,127}")
_MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session id and where it came from."""

    session_id: str
    source: Source


def named_session(url_session: str | None, headers: Mapping[str, str]) -> Session | None:
    """The session that the request names. Raises RequestError for an id that cannot be one.

    An unusable value in a harness's own header names nothing: the harness did not mean it for us.
    """
    for value, source in ((url_session, "url"), (headers.get(OWN_HEADER), "header")):
        if value is not None:
            if not _VALID.fullmatch(value):
                raise RequestError(
                    "A session id has 1 to 128 letters, digits or any of . _ : ~ - and begins with a letter or digit.",
                    param=OWN_HEADER if source == "header" else "session",
                    code="invalid_session",
                )
            return Session(session_id=value, source="url" if source == "url" else "header")
    for name in HARNESS_HEADERS:
        value = headers.get(name, "")
        if _VALID.fullmatch(value):
            return Session(session_id=value, source="harness")
    return None


def inferred_session(parent: ModelCall | None) -> Session:
    """The parent's session, or a new one."""
    if parent is not None:
        return Session(session_id=parent.session_id, source="inferred")
    return Session(session_id=new_id("session"), source="new")


class SessionOwners:
    """Keeps principals apart who use the same session id.

    Args:
        last_call: the newest call of a session, from the store.
    """

    def __init__(self, last_call: Callable[[str], ModelCall | None]) -> None:
        self._last_call = last_call
        self._owners: OrderedDict[str, str] = OrderedDict()

    def claim(self, session_id: str, principal: str) -> str:
        """The id under which this principal's calls are kept: `session_id`, or one of its own."""
        owner = self._owners.get(session_id)
        if owner is None:
            last = self._last_call(session_id)
            # Two threads may get here at once: the first to set the owner wins.
            owner = self._owners.setdefault(session_id, principal if last is None else last.principal)
            while len(self._owners) > _MOST_REMEMBERED:
                self._owners.popitem(last=False)
        return session_id if owner == principal else f"{principal}/{session_id}"
