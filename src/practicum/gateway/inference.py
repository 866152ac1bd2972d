"""Sessions and agents from content, for requests that name none and continue no answer word for word.

Four marks, in this order; each is named in the record, and where two sessions fit, none is taken:

    undelivered_prompt  the same prompt by the same principal, whose answer did not arrive: it is asked again
    tool_call_id        the history holds the id of a tool call that was seen in one session only
    delegated_prompt    the question ends with an argument of a tool call that was served: a sub-agent's task
    side_call_question  the question is the one of a side call that came first, such as a router's

Nothing is inferred from two requests that are merely alike: a group of rollouts sends the same prompt many times, and
one outcome must never be given to two of them. Answers that are continued are found before, in `episodes/link.py`.

What was seen is remembered in this process, up to a bound; a session that begins anew after a restart is the price, and
`x-practicum-session` or `/s/ID` overrides all of it. Where the session is named and the agent is not, the last but one
mark tells a sub-agent from its parent.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from practicum.gateway.sessions import Session
from practicum.types.calls import Asked
from practicum.types.messages import Message, ToolCall

_MOST_IDS = 20_000
_MOST_TASKS = 256
_MOST_PRINCIPALS = 1_000
_MOST_UNDELIVERED = 20_000
# Shorter ids are counters, and shorter arguments are no task that anybody was given.
_SHORTEST_ID = 12
_SHORTEST_TASK = 12


@dataclass(frozen=True, slots=True)
class _Task:
    """Text that a later request may begin with, whose session it then is; `agent_id` of whoever works on it."""

    text: str
    session_id: str
    agent_id: str | None
    by: str


class Inference:
    """What was seen of principals who name no sessions. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: OrderedDict[tuple[str, str], str | None] = OrderedDict()
        self._tasks: OrderedDict[str, deque[_Task]] = OrderedDict()
        self._undelivered: OrderedDict[tuple[str, str], None] = OrderedDict()

    def undelivered(self, principal: str, prompt_hash: str) -> None:
        """Remember that an answer to a prompt did not arrive."""
        with self._lock:
            self._undelivered[principal, prompt_hash] = None
            while len(self._undelivered) > _MOST_UNDELIVERED:
                self._undelivered.popitem(last=False)

    def may_repeat(self, principal: str, prompt_hash: str) -> bool:
        """Whether a prompt may be one whose answer did not arrive, so that the record is worth a look."""
        return (principal, prompt_hash) in self._undelivered

    def find(self, principal: str, messages: Sequence[Message], same: Asked | None) -> Session | None:
        """The session of a request that names none. `same`: who asked this prompt last."""
        if same is not None and same.status not in ("complete", "open"):
            return _inferred(same.session_id, "undelivered_prompt", same.agent_id)
        with self._lock:
            known = {self._ids.get((principal, key)) for key in _ids_in(messages)} - {None}
            if len(known) == 1:
                return _inferred(str(known.pop()), "tool_call_id", None)
            if any(message.role == "assistant" for message in messages):
                return None
            task = self._take_task(principal, messages, None)
        return _inferred(task.session_id, task.by, task.agent_id) if task else None

    def agent(self, principal: str, session: Session, messages: Sequence[Message], same: Asked | None) -> Session:
        """A named session with the sub-agent that the beginning of a conversation is the task of, if it is one.

        `same`: who asked this prompt last in the session.
        """
        if same is not None and same.status not in ("complete", "open"):
            return replace(session, agent_id=same.agent_id)
        with self._lock:
            task = self._take_task(principal, messages, session.session_id)
        if task is None:
            return session if same is None else replace(session, agent_id=same.agent_id)
        return replace(session, agent_id=task.agent_id)

    def saw(self, principal: str, session: Session, messages: Sequence[Message], *, side_call: bool) -> None:
        """Remember a request."""
        if session.source not in ("inferred", "new"):
            return
        with self._lock:
            self._remember_ids(principal, session.session_id, _ids_in(messages))
            if side_call and (question := _question(messages)):
                self._add(principal, _Task(question, session.session_id, None, "side_call_question"))

    def served(self, principal: str, session: Session, calls: Sequence[ToolCall]) -> None:
        """Remember the tool calls of an answer."""
        with self._lock:
            self._remember_ids(principal, session.session_id, (call.id for call in calls if call.id))
            for call in calls:
                for text in _texts(_parsed(call.arguments)):
                    if len(text) >= _SHORTEST_TASK:
                        self._add(principal, _Task(text, session.session_id, call.id, "delegated_prompt"))

    def _take_task(self, principal: str, messages: Sequence[Message], session_id: str | None) -> _Task | None:
        """The task that the request's question is, once: the same question again is another agent's."""
        question, tasks = _question(messages), self._tasks.get(principal, deque())
        fits = [
            task
            for task in tasks
            if session_id in (None, task.session_id)
            and (question == task.text if task.by == "side_call_question" else question.endswith(task.text))
        ]
        if not fits or len({task.session_id for task in fits}) > 1:
            return None
        tasks.remove(fits[0])
        return fits[0]

    def _remember_ids(self, principal: str, session_id: str, keys: Iterator[str]) -> None:
        for key in keys:
            if len(key) >= _SHORTEST_ID:
                before = self._ids.setdefault((principal, key), session_id)
                self._ids[principal, key] = session_id if before == session_id else None
        while len(self._ids) > _MOST_IDS:
            self._ids.popitem(last=False)

    def _add(self, principal: str, task: _Task) -> None:
        self._tasks.setdefault(principal, deque(maxlen=_MOST_TASKS)).append(task)
        self._tasks.move_to_end(principal)
        while len(self._tasks) > _MOST_PRINCIPALS:
            self._tasks.popitem(last=False)


def _inferred(session_id: str, by: str, agent_id: str | None) -> Session:
    return Session(session_id=session_id, source="inferred", by=by, agent_id=agent_id)


def _ids_in(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        yield from (call.id for call in message.tool_calls if call.id)


def _question(messages: Sequence[Message]) -> str:
    """All that the user said."""
    return "".join(message.content for message in messages if message.role == "user").strip()


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value.strip()
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
