"""One recorder for every model call.

A call is opened before its first byte leaves and finished before its last one does, so a process that dies in between
leaves a record that says so. The engine need not wait for the disk: it samples while the open record is being written.
An answer that is whole before any of it leaves needs no open record: its final one is its first.
The two modes differ in what a store that fails means: in `live` the user still gets the answer, and the loss is counted
and logged; in `rollout` the call fails, because an answer without a record is worthless there.

Invariants: ids, logprobs and versions are appended together and never changed; the final record is durable before the
caller sees the terminal event. It must not know wire formats, sessions or how parents are found.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from practicum.capture.arrivals import Arrivals
from practicum.capture.stalls import Stalls
from practicum.errors import StoreError
from practicum.types.calls import CallStatus, ModelCall
from practicum.types.tokens import FinishReason, TokenChunk

Mode = Literal["live", "rollout"]
_log = logging.getLogger("practicum.capture")


class CallStore(Protocol):
    """What the recorder needs of a store."""

    def put_call(self, call: ModelCall) -> Future[None]:
        """Insert a call or finish its open record; resolves once it is durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureHealth:
    """Counts of records. A call is `opened` by its first durable record; that of an `unopened` one failed, whether or
    not its final one was `finished`. A `lost` final record is not durable.
    """

    mode: Mode
    opened: int
    finished: int
    unopened: int
    lost: int
    last_error: str | None


class Recorder:
    """Opens and finishes records.

    Args:
        store: where they go.
        mode: what a failing store means.
        timeout_s: how long to wait for the disk before the record counts as lost.
        clock: UTC seconds since the epoch.
        stalls: told when the calls of a rollout's session wait for us.
    """

    def __init__(
        self,
        store: CallStore,
        mode: Mode = "live",
        *,
        timeout_s: float = 10.0,
        clock: Callable[[], float] = time.time,
        stalls: Stalls | None = None,
    ) -> None:
        self.mode: Mode = mode
        self.stalls = stalls or Stalls()
        self._store = store
        self._timeout_s = timeout_s
        self._clock = clock
        self._counts = {"opened": 0, "finished": 0, "unopened": 0, "lost": 0}
        self._last_error: str | None = None
        self._arrivals: Arrivals | None = None

    def recording(self, call: ModelCall, mode: Mode | None = None) -> Recording:
        """The recording of a call whose status is `open`; nothing is written yet. `mode` is this call's own."""
        if (mode or self.mode) == "rollout":
            self.stalls.arrived(call.session_id, call.call_id)
        return Recording(self, call, self._clock, mode or self.mode)

    def put(self, call: ModelCall) -> Future[None]:
        """Begin to write a record."""
        return self._store.put_call(call)

    async def begin(self, call: ModelCall, mode: Mode | None = None) -> Recording:
        """Make the open record durable. Raises StoreError in rollout mode."""
        recording = self.recording(call, mode)
        await recording.opened()
        return recording

    def health(self) -> CaptureHealth:
        """Counters since this process started."""
        return CaptureHealth(mode=self.mode, last_error=self._last_error, **self._counts)

    def count_opening(self, durable: bool) -> None:
        """Note what became of an open record."""
        self._counts["opened" if durable else "unopened"] += 1

    async def finish(self, call: ModelCall, mode: Mode) -> bool:
        """Make a final record durable; False where it is not. Raises StoreError instead in rollout mode."""
        if mode == "rollout":
            self.stalls.ended(call.session_id, call.call_id, failed=call.status in ("failed", "interrupted"))
        durable = False
        try:
            durable = await self.durable(call, self._store.put_call(call), mode)
        finally:
            self._counts["finished" if durable else "lost"] += 1
        return durable

    async def durable(self, call: ModelCall, written: Future[None], mode: Mode) -> bool:
        """Wait for a record to be durable; False where it is not. Raises StoreError instead in rollout mode."""
        if self._arrivals is None or self._arrivals.loop is not asyncio.get_running_loop():
            self._arrivals = Arrivals()
        try:
            await self._arrivals.wait(written, self._timeout_s)
            return True
        except (StoreError, TimeoutError) as error:
            reason = str(error) or f"no answer within {self._timeout_s:g} s"
            self._last_error = reason
            _log.error("the record of call %s (%s) is not durable: %s", call.call_id, call.status, reason)
            if mode == "rollout":
                raise StoreError(f"The call could not be recorded: {reason}") from error
            return False


class Recording:
    """One call under way. Chunks are added as they are sampled; `complete` or `abandon` ends it, once."""

    def __init__(self, recorder: Recorder, call: ModelCall, clock: Callable[[], float], mode: Mode) -> None:
        self.call = call
        self._opening: Future[None] | None = None
        self._opened = False
        self._recorder = recorder
        self._mode = mode
        self._clock = clock
        self._ids: list[int] = []
        self._logprobs: list[float | None] = []
        self._sampled_logprobs: list[float | None] = []
        self._versions: list[int] = []

    @property
    def sampled(self) -> int:
        """Number of tokens on record so far."""
        return len(self._ids)

    @property
    def completion_ids(self) -> tuple[int, ...]:
        """The tokens so far."""
        return tuple(self._ids)

    def begin(self) -> None:
        """Begin to write the open record, unless there is a record already."""
        if self._opening is None and not self._opened:
            self._opening = self._recorder.put(self.call)

    async def opened(self) -> None:
        """Wait until a record is durable; before the first byte leaves. Raises StoreError in rollout mode."""
        self.begin()
        if self._opening is None:
            return
        try:
            durable = await self._recorder.durable(self.call, self._opening, self._mode)
        except StoreError:
            self._settle_opening(False)
            raise
        self._settle_opening(durable)

    def add(self, chunk: TokenChunk) -> None:
        """Append freshly sampled tokens."""
        if not self._ids and self._mode == "rollout":
            self._recorder.stalls.answered(self.call.session_id, self.call.call_id)
        self._ids.extend(chunk.ids)
        self._logprobs.extend(chunk.logprobs)
        self._sampled_logprobs.extend(chunk.sampled_logprobs)
        self._versions.extend([chunk.version] * len(chunk.ids))

    async def complete(self, *, text: str, finish_reason: FinishReason, history_hash: str) -> ModelCall:
        """Finish a call whose answer is whole. Raises StoreError in rollout mode."""
        return await self._end("complete", text=text, finish_reason=finish_reason, history_hash=history_hash)

    async def abandon(self, status: CallStatus, *, text: str, error: str) -> ModelCall:
        """Finish a call with the tokens so far: `aborted` by its caller, `interrupted` by us, or `failed`."""
        reason: FinishReason = "error" if status == "failed" else "aborted"
        if status == "aborted":
            self.call = replace(self.call, kind="aborted")
        return await self._end(status, text=text, finish_reason=reason, history_hash="", error=error)

    async def _end(
        self, status: CallStatus, *, text: str, finish_reason: FinishReason, history_hash: str, error: str | None = None
    ) -> ModelCall:
        self.call = replace(
            self.call,
            status=status,
            finished_at=self._clock(),
            text=text,
            finish_reason=finish_reason,
            completion_ids=tuple(self._ids),
            logprobs=tuple(self._logprobs),
            sampled_logprobs=tuple(self._sampled_logprobs),
            versions=tuple(self._versions),
            history_hash=history_hash,
            error=error,
        )
        durable = False
        try:
            durable = await self._recorder.finish(self.call, self._mode)
        finally:
            if self._opening is not None:  # written before this one, or lost
                durable = self._opening.done() and self._opening.exception() is None
            self._settle_opening(durable)
        return self.call

    def _settle_opening(self, durable: bool) -> None:
        """Count it, once; nothing is to be opened from here on."""
        if not self._opened:
            self._opening, self._opened = None, True
            self._recorder.count_opening(durable)
