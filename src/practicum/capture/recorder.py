"""One recorder for every model call.

A call is opened before its first byte leaves and finished before its last one does, so a process that dies in between
leaves a record that says so. The engine need not wait for the disk: it samples while the open record is being written.
An answer that is whole before any of it leaves needs no open record: its final one is its first.
The two modes differ in what a store that fails means: in `live` the user still gets the answer, and the loss is counted
and logged; in `rollout` the call fails, because an answer without a record is worthless there.

A final record that was lost is written again later, for as long as it is one of the newest few (in rollout mode as an
interrupted call's): else its row would stay open, and whoever sends the request again under its idempotency key would
be told to wait for ever.

Invariants: ids, logprobs and versions are appended together and never changed; the final record is durable before the
caller sees the terminal event. It must not know wire formats, sessions or how parents are found.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from practicum.capture.arrivals import Arrivals
from practicum.capture.stalls import Stalls
from practicum.errors import StoreError
from practicum.types.calls import CallStatus, ModelCall
from practicum.types.tokens import FinishReason, TokenChunk

Mode = Literal["live", "rollout"]
MOST_KEPT = 256
_log = logging.getLogger("practicum.capture")


class CallStore(Protocol):
    """What the recorder needs of a store."""

    def put_call(self, call: ModelCall) -> Future[None]:
        """Insert a call or finish its open record; resolves once it is durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureHealth:
    """Counts of records. A call is `opened` by its first durable record; that of an `unopened` one failed, whether or
    not its final one was `finished`. A `lost` final record is not durable; so many of the lost ones were `recovered`
    since.
    """

    mode: Mode
    opened: int
    finished: int
    unopened: int
    lost: int
    recovered: int
    last_error: str | None


class Recorder:
    """Opens and finishes records.

    Args:
        store: where they go.
        mode: what a failing store means.
        timeout_s: how long to wait for the disk before the record counts as lost.
        clock: UTC seconds since the epoch.
        stalls: told when the calls of a rollout's session wait for us.
        again_s: pause before a lost final record is written again.
    """

    def __init__(
        self,
        store: CallStore,
        mode: Mode = "live",
        *,
        timeout_s: float = 10.0,
        clock: Callable[[], float] = time.time,
        stalls: Stalls | None = None,
        again_s: float = 5.0,
    ) -> None:
        self.mode: Mode = mode
        self.stalls = stalls or Stalls()
        self._store = store
        self._timeout_s = timeout_s
        self._clock = clock
        self._counts = {"opened": 0, "finished": 0, "unopened": 0, "lost": 0, "recovered": 0}
        self._last_error: str | None = None
        self._arrivals: Arrivals | None = None
        self._again_s = again_s
        self._kept: dict[str, ModelCall] = {}
        self._again: asyncio.TimerHandle | None = None

    def recording(self, call: ModelCall, mode: Mode | None = None) -> Recording:
        """The recording of a call whose status is `open`; nothing is written yet. `mode` is this call's own."""
        if (mode or self.mode) == "rollout":
            self.stalls.arrived(call.session_id, call.call_id)
        self._kept.pop(call.call_id, None)
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
        try:
            durable = await self.durable(call, self._store.put_call(call), mode)
        except StoreError:
            self._counts["lost"] += 1
            self._keep(
                replace(call, status="interrupted", error="the answer could not be recorded, so it did not count")
            )
            raise
        self._counts["finished" if durable else "lost"] += 1
        if durable:
            self._kept.pop(call.call_id, None)
        else:
            self._keep(call)
        return durable

    def _keep(self, call: ModelCall) -> None:
        if len(self._kept) >= MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[call.call_id] = call
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(self._again_s, self._write_again)

    def _write_again(self) -> None:
        self._again = None
        loop = asyncio.get_running_loop()
        kept, self._kept = self._kept, {}
        for call in kept.values():

            def tell(written: Future[None], call: ModelCall = call) -> None:
                with suppress(RuntimeError):  # the loop has ended, and with it this process's time
                    loop.call_soon_threadsafe(self._written_again, call, written)

            self._store.put_call(call).add_done_callback(tell)

    def _written_again(self, call: ModelCall, written: Future[None]) -> None:
        error = written.exception()
        if error is None:
            self._counts["recovered"] += 1
            _log.warning("the record of call %s, which was lost, is durable now", call.call_id)
        elif isinstance(error, StoreError):
            self._keep(self._kept.get(call.call_id, call))
        else:
            _log.error("the record of call %s cannot be written", call.call_id, exc_info=error)

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
