"""What happens to rollouts, written down before it counts.

A store that fails for a while holds rollouts up and loses none: what is written or read is tried until it works. It
must not know sandboxes or harnesses.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from practicum.errors import StoreError
from practicum.harnesses.attempt import End
from practicum.store import RolloutEvent, Store, create_key
from practicum.types.ids import new_id
from practicum.types.principals import Scope
from practicum.types.rollouts import Cause, Rollout, RolloutState, Stage

T = TypeVar("T")
_PAUSES_S = (0.05, 0.2, 1.0, 5.0)
_log = logging.getLogger("practicum.harnesses.journal")


class RolloutJournal:
    """One rollout's journal.

    Args:
        store: where it is kept.
        rollout: the rollout as it stands.
        left_ready: told when its sandbox has left the ready buffer.
    """

    def __init__(self, store: Store, rollout: Rollout, left_ready: Callable[[], None]) -> None:
        self.rollout_id = rollout.rollout_id
        self.attempt = rollout.attempt
        self._store = store
        self._left_ready = left_ready
        self._instructions = list(rollout.instructions)
        self._more = asyncio.Event()
        self._no_more = False

    # -- what an attempt sees ------------------------------------------------------------------------------------

    async def state(self, state: RolloutState, **changes: Any) -> None:
        """Note where the rollout stands."""
        await self._write("state", {"state": state}, {"state": state, **changes})

    async def stage(self, stage: Stage, started_at: float, wall_s: float, stalled_s: float) -> None:
        """Note how long a stage took."""
        detail = {"stage": stage, "started_at": started_at, "wall_s": wall_s, "stalled_s": stalled_s}
        await self._write("stage", detail, {})

    def instructions(self) -> Sequence[str]:
        """All instructions so far."""
        return self._instructions

    async def more(self, done: int, timeout_s: float) -> bool:
        """Wait for an instruction behind the first `done`; False where none came, or no more are wanted."""
        try:
            async with asyncio.timeout(timeout_s):
                while len(self._instructions) <= done and not self._no_more:
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            self._no_more = True
        return len(self._instructions) > done

    def started_running(self) -> None:
        """The sandbox has left the ready buffer."""
        self._left_ready()

    async def agent_is_done(self) -> None:
        """The key is of no more use, and no further instruction is taken."""
        self._no_more = True
        revoke = partial(self._store.revoke_session_keys, self.session_id, time.time())
        await until_it_works(self.rollout_id, lambda: asyncio.wrap_future(revoke()))

    # -- what the service writes ---------------------------------------------------------------------------------

    @property
    def session_id(self) -> str:
        """The session of this attempt: the rollout's own id first, then one for each further attempt."""
        return self.rollout_id if self.attempt == 1 else f"{self.rollout_id}.{self.attempt}"

    @property
    def takes_more(self) -> bool:
        """Whether a further instruction would still be played."""
        return not self._no_more

    async def begin(self) -> Rollout | None:
        """Start a further attempt and read the rollout afresh; None where it has ended."""
        before, self.attempt = self.attempt, self.attempt + 1
        changes = {"state": "preparing", "attempt": self.attempt, "session_id": self.session_id, "turns_done": 0}
        if not await self._write("attempt", {"session_id": self.session_id}, changes, expected=before):
            return None
        rollout = await self.read()
        if len(rollout.instructions) >= len(self._instructions):  # else one came just now, and is being written
            self._instructions = list(rollout.instructions)
        return rollout

    async def read(self) -> Rollout:
        """The rollout as it stands."""
        return await until_it_works(
            self.rollout_id, lambda: asyncio.to_thread(self._store.get_rollout, self.rollout_id)
        )

    async def key(self) -> str:
        """A key for this attempt's session alone."""
        scopes: tuple[Scope, ...] = ("sample",)
        session_id = self.session_id
        make = partial(create_key, self._store, session_id, scopes, session_id=session_id)
        return str(await until_it_works(self.rollout_id, lambda: asyncio.to_thread(make)))

    async def lost(self, cause: Cause, error: str | None) -> bool:
        """Give an attempt up and queue the rollout again."""
        detail = {"session_id": self.session_id, "cause": cause, "error": error}
        return await self._write("attempt_lost", detail, {"state": "queued"})

    async def end(self, end: End) -> bool:
        """End the rollout; False where it had ended."""
        changes = {"state": "ended", "cause": end.cause, "error": end.error, "ended_at": time.time()}
        if end.output:
            changes["output"] = end.output
        return await self._write("ended", {"cause": end.cause}, changes, end=end)

    async def add(self, known: Sequence[str], instruction: str) -> bool:
        """Add an instruction behind those on record; one at a time. False where the rollout has ended or is at another
        attempt by now.
        """
        # Seen by the attempt at once: it must not come to its end while this is being written.
        self._instructions = [*known, instruction]
        self._more.set()
        number = len(self._instructions)
        return await self._write("instruction", {"number": number}, {"instructions": self._instructions})

    def no_more(self) -> None:
        """Let an attempt that waits for instructions go on to its end."""
        self._no_more = True
        self._more.set()

    async def _write(
        self,
        kind: str,
        detail: Mapping[str, Any],
        changes: Mapping[str, Any],
        *,
        expected: int | None = None,
        end: End | None = None,
    ) -> bool:
        event = RolloutEvent(
            event_id=new_id("re"),
            rollout_id=self.rollout_id,
            attempt=self.attempt,
            kind=kind,
            at=time.time(),
            detail=detail,
        )
        outcomes = end.outcomes if end is not None else ()
        at_attempt = self.attempt if expected is None else expected
        return bool(
            await until_it_works(
                self.rollout_id,
                lambda: asyncio.wrap_future(self._store.change_rollout(event, changes, outcomes, attempt=at_attempt)),
            )
        )


async def until_it_works(who: str, work: Callable[[], Awaitable[T]]) -> T:
    """What `work` gives, which is tried again for as long as the store fails. `who` waits for it, for the log."""
    tries = 0
    while True:
        try:
            return await work()
        except StoreError as error:
            pause_s = _PAUSES_S[min(tries, len(_PAUSES_S) - 1)]
            _log.error("%s waits for the store: %s", who, error)
            tries += 1
        await asyncio.sleep(pause_s)
