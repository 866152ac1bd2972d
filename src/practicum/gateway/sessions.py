"""Which session a call belongs to, and which of the session's agents sent it, as far as the request says so.

In order: the session that the key is bound to, the `/s/ID` prefix of the URL, `x-practicum-session`, a header or a
field of the body that the harness sends by itself. Where none names one, `inference.py` looks at the content. An id
belongs to the principal who used it first; another principal's calls under the same id get a session of their own,
`NAME/ID`.

A sub-agent shares its parent's session and has an agent id of its own; the main agent has none.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from practicum.errors import RequestError
from practicum.types.calls import ModelCall
from practicum.types.ids import new_id

Source = Literal["key", "url", "header", "harness", "inferred", "new"]

OWN_HEADER = "x-practicum-session"
OWN_AGENT_HEADER = "x-practicum-agent"
# Headers that harnesses send unprompted, most specific first, and who was seen to send them. A sub-agent's header that
# names its parent's session comes before its own.
HARNESS_HEADERS: dict[str, str] = {
    "x-claude-code-session-id": "Claude Code and its agent SDK; shared by its sub-agents",
    "x-parent-session-id": "sub-agents of opencode and Kilo: the parent's session",
    "x-session-id": "opencode and Kilo",
    "session-id": "Codex (shared by its sub-agents), pi on the Responses API",
    "x-session-affinity": "opencode and Kilo, beside x-session-id",
    "x-affinity": "Mistral Vibe",
    "x-codex-parent-thread-id": "sub-agents of Codex: the parent's thread",
    "thread-id": "Codex, beside session-id",
}
# Where a header tells a sub-agent from its parent: (the header that holds its id, a header that only sub-agents send).
AGENT_HEADERS: tuple[tuple[str, str], ...] = (
    (OWN_AGENT_HEADER, OWN_AGENT_HEADER),
    ("x-claude-code-agent-id", "x-claude-code-agent-id"),
    ("thread-id", "x-codex-parent-thread-id"),
    ("x-session-id", "x-parent-session-id"),
)
_VALID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:~-]{0,127}")
_MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session id, where it came from and by what (a header, a field, a rule), and which agent of it asks."""

    session_id: str
    source: Source
    by: str = ""
    agent_id: str | None = None

    @property
    def recorded_source(self) -> str:
        """`source`, with what it came by."""
        return f"{self.source}:{self.by}" if self.by else self.source


def named_session(
    url_session: str | None,
    headers: Mapping[str, str],
    body: Mapping[str, Any] | None = None,
    *,
    bound: str | None = None,
) -> Session | None:
    """The session that the request names. Raises RequestError for an id that cannot be one.

    An unusable value in a harness's own header or field names nothing: the harness did not mean it for us.

    Args:
        url_session: from the URL.
        headers: with lower-case names.
        body: the request as it came.
        bound: the session that the caller's key is for; nothing else is asked then.
    """
    agent_id = named_agent(headers)
    if bound is not None:
        return Session(session_id=bound, source="key", agent_id=agent_id)
    for value, source in ((url_session, "url"), (headers.get(OWN_HEADER), "header")):
        if value is not None:
            if not _VALID.fullmatch(value):
                raise RequestError(
                    "A session id has 1 to 128 letters, digits or any of . _ : ~ - and begins with a letter or digit.",
                    param=OWN_HEADER if source == "header" else "session",
                    code="invalid_session",
                )
            return Session(session_id=value, source="url" if source == "url" else "header", agent_id=agent_id)
    for name in HARNESS_HEADERS:
        value = headers.get(name)
        if value is not None and _VALID.fullmatch(value):
            return Session(session_id=value, source="harness", by=name, agent_id=agent_id)
    for field, read in BODY_FIELDS.items():
        value = read(body or {})
        if value is not None and _VALID.fullmatch(value):
            return Session(session_id=value, source="harness", by=field, agent_id=agent_id)
    return None


def named_agent(headers: Mapping[str, str]) -> str | None:
    """The sub-agent that the headers name; None for the main agent."""
    for name, only_sub_agents in AGENT_HEADERS:
        value = headers.get(name)
        if value is not None and headers.get(only_sub_agents) and _VALID.fullmatch(value):
            return value
    return None


def new_session() -> Session:
    """A session of its own."""
    return Session(session_id=new_id("session"), source="new")


def _claude_session(body: Mapping[str, Any]) -> str | None:
    """Claude Code writes a JSON document into `metadata.user_id`."""
    metadata = body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    if not isinstance(user, str) or not user.startswith("{"):
        return None
    try:
        told = json.loads(user)
    except (ValueError, RecursionError):
        return None
    return _text(told, "session_id")


def _codex_session(body: Mapping[str, Any]) -> str | None:
    """Codex repeats its ids in `client_metadata`; `prompt_cache_key` is a session's there, elsewhere anything's."""
    metadata = body.get("client_metadata")
    return _text(metadata, "session_id") or (_text(body, "prompt_cache_key") if metadata else None)


def _text(holder: Any, key: str) -> str | None:
    value = holder.get(key) if isinstance(holder, Mapping) else None
    return value if isinstance(value, str) and value else None


# Fields of bodies that name a session, for proxies that drop headers.
BODY_FIELDS: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
    "metadata.user_id": _claude_session,
    "client_metadata": _codex_session,
}


class SessionOwners:
    """Keeps principals apart who use the same session id, and finds the session of a sub-agent's sub-agent.

    Args:
        last_call: the newest call of a session, from the store.
    """

    def __init__(self, last_call: Callable[[str], ModelCall | None]) -> None:
        self._last_call = last_call
        self._owners: OrderedDict[str, str] = OrderedDict()
        self._roots: OrderedDict[tuple[str, str], str] = OrderedDict()

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

    def root(self, session: Session, principal: str) -> str:
        """The session in which a harness's agents meet: where the parent is a sub-agent itself, its parent's.

        Remembered in this process only; after a restart such a grandchild gets a session of its parent's name.
        """
        root = self._roots.get((principal, session.session_id), session.session_id)
        if session.source == "harness" and session.agent_id is not None and session.agent_id != root:
            self._roots[principal, session.agent_id] = root
            while len(self._roots) > _MOST_REMEMBERED:
                self._roots.popitem(last=False)
        return root
