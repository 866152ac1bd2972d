"""How long a session's agent has been held up by us: the difference between the wall and the agent's own clock.

An agent is held up while a call of it waits for its first token (the engine's queue, a policy being swapped in, an
engine that is down, the prompt's own pass) and none is being answered; and after a call that failed on our side, until
its next call comes, for `outage_s` at most, since harnesses pause before they try again. Time in which tokens come
is the agent's: it chose to write them.

The whole time to the first token counts, because the engine's seam does not tell queueing from the prompt's pass.

Requests of a session that were refused, and so made no call, are remembered here as well: they are all that is known
of an agent that asked wrongly. It must not know rollouts.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_MOST_REMEMBERED = 10_000
_MOST_REFUSALS = 20


@dataclass(slots=True)
class _Session:
    waiting: set[str] = field(default_factory=set)
    answering: set[str] = field(default_factory=set)
    stalled_s: float = 0.0
    since: float | None = None
    outage_until: float | None = None
    refused: dict[str, int] = field(default_factory=dict)


class Stalls:
    """Counts each session's held-up seconds; `clock` is monotonic."""

    def __init__(self, *, outage_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._outage_s = outage_s
        self._clock = clock
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def stalled_s(self, session_id: str) -> float:
        """Seconds so far, a stall that goes on included; 0 for a session without a call."""
        session = self._sessions.get(session_id)
        if session is None:
            return 0.0
        self._settle(session)
        return session.stalled_s

    @contextmanager
    def waiting(self, session_id: str, call_id: str) -> Iterator[None]:
        """Around a wait of a call before it is on record."""
        self.arrived(session_id, call_id)
        failed = False
        try:
            yield
        except Exception:
            failed = True
            raise
        finally:
            self.ended(session_id, call_id, failed=failed)

    def arrived(self, session_id: str, call_id: str) -> None:
        """A call waits for its first token."""
        session = self._open(session_id)
        session.outage_until = None
        session.waiting.add(call_id)
        self._restart(session)

    def answered(self, session_id: str, call_id: str) -> None:
        """A call has its first token."""
        session = self._open(session_id)
        session.waiting.discard(call_id)
        session.answering.add(call_id)
        self._restart(session)

    def ended(self, session_id: str, call_id: str, *, failed: bool) -> None:
        """A call is over; `failed` on our side."""
        session = self._open(session_id)
        session.waiting.discard(call_id)
        session.answering.discard(call_id)
        if failed:
            session.outage_until = self._clock() + self._outage_s
        self._restart(session)

    def refused(self, session_id: str, request: str) -> None:
        """A request was refused before it was a call; `request` says which, and why."""
        refused = self._open(session_id).refused
        if request in refused or len(refused) < _MOST_REFUSALS:
            refused[request] = refused.get(request, 0) + 1

    def refusals(self, session_id: str) -> dict[str, int]:
        """What was refused, and how often; the first few that differ."""
        session = self._sessions.get(session_id)
        return dict(session.refused) if session else {}

    def _open(self, session_id: str) -> _Session:
        session = self._sessions.setdefault(session_id, _Session())
        self._sessions.move_to_end(session_id)
        while len(self._sessions) > _MOST_REMEMBERED:
            self._sessions.popitem(last=False)
        self._settle(session)
        return session

    def _settle(self, session: _Session) -> None:
        """Add what has passed since the last look."""
        if session.since is None:
            return
        now = self._clock()
        until = now if session.waiting or session.outage_until is None else min(now, session.outage_until)
        session.stalled_s += max(0.0, until - session.since)
        session.since = now

    def _restart(self, session: _Session) -> None:
        held_up = bool(session.waiting) or session.outage_until is not None
        session.since = self._clock() if held_up and not session.answering else None
