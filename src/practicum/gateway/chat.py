"""The route of every dialect: one request in, one answer out, recorded before its last byte.

The first byte of a stream leaves with the first certain text, so an engine that fails before it answers with a status
that harnesses retry. A caller who goes away, or stops reading, ends the generation; what was sampled stays on record.

It must not know how ids are found or rendered (`prepare.py`) nor how tokens become text (`generation.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from practicum.capture.recorder import Mode, Recorder, Recording
from practicum.dialects.dialect import AnswerFacts, CountingDialect, Dialect, Ending
from practicum.episodes.matching import extended_hash
from practicum.errors import EngineError, PracticumError
from practicum.gateway.answer import AnswerText, recorded_answer
from practicum.gateway.auth import check_scope, known
from practicum.gateway.edge import url_session
from practicum.gateway.engine_watch import EngineWatch
from practicum.gateway.generation import Generation
from practicum.gateway.idempotency import HEADER, CallById, InProgress, Slot, find_slot
from practicum.gateway.model_names import ModelNames
from practicum.gateway.prepare import Incoming, Prepared, Preparer
from practicum.gateway.sinks import BodySink, CallerGone, StreamSink
from practicum.gateway.swap import Swapper
from practicum.gateway.timing import Timing
from practicum.renderers import Renderer
from practicum.types.calls import ModelCall
from practicum.types.ids import new_id
from practicum.types.principals import Principal
from practicum.types.seams import Sampler
from practicum.types.tokens import SampleRequest

T = TypeVar("T")
SHORT_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatParts:
    """What the route is made of."""

    store: CallById
    preparer: Preparer
    recorder: Recorder
    renderer: Renderer
    sampler: Sampler
    swapper: Swapper
    names: ModelNames
    watch: EngineWatch
    timing: Timing
    in_progress: InProgress


class ChatRoute:
    """Answers requests of one dialect; an ASGI application."""

    def __init__(self, parts: ChatParts, dialect: Dialect) -> None:
        self._parts = parts
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Prepare, sample, answer. Raises errors of the tree before anything is sent."""
        try:
            incoming = await _incoming(scope, receive, self._dialect)
        except CallerGone:
            return
        key = incoming.headers.get(HEADER)
        # From before the look-up to behind the answer: of two equal requests at one moment only one may find nothing.
        with self._parts.in_progress.hold((incoming.principal.name, key)) if key else nullcontext():
            await (await self._response(incoming, key))(receive, send)

    async def _response(self, incoming: Incoming, key: str | None) -> ChatResponse | ReplayResponse:
        parts = self._parts
        principal = incoming.principal
        prepared = await _prepared(parts.preparer.prepare, incoming)
        slot = Slot(call_id=new_id("call"), answered=None)
        if key:
            in_url = [incoming.path[name] for name in ("model", "method") if name in incoming.path]
            asked = (prepared.request.body, self._dialect.NAME, in_url)
            slot = await run_in_threadpool(find_slot, parts.store, principal.name, key, *asked)
        if slot.answered is not None:
            return ReplayResponse(parts, prepared, slot.answered)
        swapper = parts.swapper
        bound = principal.session_id is not None
        stalls = parts.recorder.stalls
        with stalls.waiting(prepared.session.session_id, slot.call_id) if bound else nullcontext():
            policy = await (
                swapper.ensure_current()
                if prepared.pinned is None
                else swapper.ensure(prepared.pinned, candidates=bound)
            )
        call = _opened(prepared, principal, slot.call_id, policy.version, parts.names.of(policy.version))
        return ChatResponse(parts, prepared, call, "rollout" if bound else None)


class CountRoute:
    """Tells the number of prompt tokens. Nothing is sampled, so nothing is recorded. An ASGI application."""

    def __init__(self, parts: ChatParts, dialect: CountingDialect) -> None:
        self._parts = parts
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count."""
        try:
            incoming = await _incoming(scope, receive, self._dialect, task="count")
        except CallerGone:
            return
        tokens = await _prepared(self._parts.preparer.count, incoming)
        await JSONResponse(self._dialect.token_count(tokens))(scope, receive, send)


class ChatResponse:
    """Samples while it is being sent."""

    def __init__(self, parts: ChatParts, prepared: Prepared, call: ModelCall, mode: Mode | None) -> None:
        self._parts = parts
        self._prepared = prepared
        self._call = call
        self._mode = mode
        self._sink = _sink(parts, prepared, call)
        self._receive: Receive
        self._watcher: asyncio.Task[None] | None = None
        self._answered = self._gone = False

    async def __call__(self, receive: Receive, send: Send) -> None:
        """Answer, and stop when the caller disconnects."""
        self._sink.send = send
        self._receive = receive
        task = asyncio.current_task()
        if self._prepared.request.stream:
            self._watch_caller()
        try:
            await self._answer_or_fail()
        except asyncio.CancelledError:
            if not self._gone or task is None or task.uncancel():
                raise
        except CallerGone:
            return
        finally:
            if self._watcher is not None:
                self._watcher.cancel()

    async def _answer_or_fail(self) -> None:
        try:
            await self._answer()
            self._answered = True
        except PracticumError as failure:
            if not self._sink.started:
                raise
            await self._sink.fail(failure)

    def _watch_caller(self) -> None:
        """From here on the caller's leaving ends the answer. One body that is there at once is over before that."""
        task = asyncio.current_task()
        if self._watcher is None and task is not None:
            self._watcher = asyncio.create_task(self._until_gone(task))

    async def _until_gone(self, task: asyncio.Task[Any]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._answered:
            self._gone = True
            task.cancel()

    async def _answer(self) -> None:
        parts, prepared = self._parts, self._prepared
        recording = parts.recorder.recording(self._call, self._mode)
        self._sink.ready = recording.opened
        answer = AnswerText(prepared.request, self._call.call_id, parts.renderer, prepared.prompt_ids)
        generation = Generation(
            parts.sampler,
            parts.renderer.tokenizer,
            parts.watch,
            sample=self._sample(),
            recording=recording,
            answer=answer,
            ping_s=parts.timing.ping_s,
            waits=partial(self._engine_waits, recording),
            keep_tokens=prepared.request.logprobs,
        )
        try:
            reason = await generation.run(self._sink)
            message = answer.message
            await recording.complete(
                text=answer.text,
                finish_reason=reason,
                history_hash=extended_hash(prepared.link.prompt_hash, message),
            )
        except BaseException as error:
            await self._abandon(recording, answer.text, error)
            raise
        parts.preparer.answered(self._call.principal, prepared.session, message)
        end = Ending(
            reason=reason,
            completion_tokens=recording.sampled,
            reasoning_tokens=answer.reasoning_tokens,
            stop=answer.stop,
        )
        await self._sink.finish(message, end, generation.tokens)

    def _engine_waits(self, recording: Recording) -> None:
        recording.begin()
        self._watch_caller()

    def _sample(self) -> SampleRequest:
        return SampleRequest(
            request_id=self._call.call_id,
            prompt_ids=self._prepared.prompt_ids,
            version=self._call.policy_version,
            stop_ids=self._parts.renderer.stop_ids,
            params=replace(self._prepared.request.params, max_tokens=self._prepared.max_tokens),
        )

    async def _abandon(self, recording: Recording, text: str, error: BaseException) -> None:
        self._parts.preparer.undelivered(self._call.principal, self._call.prompt_hash)
        try:
            if isinstance(error, CallerGone):
                await recording.abandon("aborted", text=text, error="the caller stopped reading")
            elif isinstance(error, Exception):
                if isinstance(error, EngineError) and error.status >= 500:  # not what it was right to refuse
                    self._parts.watch.failed()
                reason = f"{error.code}: {error.message}" if isinstance(error, PracticumError) else "internal error"
                await recording.abandon("failed", text=text, error=reason)
            elif self._gone:
                await recording.abandon("aborted", text=text, error="the caller disconnected")
            else:
                await recording.abandon("interrupted", text=text, error="the server stopped before the answer ended")
        except PracticumError:  # counted and logged by the recorder; the first error is the one to report
            return


class ReplayResponse:
    """Sends an answer that is on record once more."""

    def __init__(self, parts: ChatParts, prepared: Prepared, call: ModelCall) -> None:
        self._renderer = parts.renderer
        self._prepared = prepared
        self._call = call
        self._sink = _sink(parts, prepared, call, (b"x-practicum-replayed", b"true"))

    async def __call__(self, receive: Receive, send: Send) -> None:
        """Send it, as far as the caller reads."""
        with suppress(CallerGone):
            await self._replay(send)

    async def _replay(self, send: Send) -> None:
        self._sink.send = send
        answer, pieces = recorded_answer(self._call, self._prepared.request, self._renderer)
        for piece in pieces:
            await self._sink.piece(piece, ())
        end = Ending(
            reason=self._call.finish_reason or "stop",
            completion_tokens=len(self._call.completion_ids),
            reasoning_tokens=answer.reasoning_tokens,
            stop=answer.stop,
        )
        await self._sink.finish(answer.message, end, ())


async def _incoming(scope: Scope, receive: Receive, dialect: Dialect, task: str = "answer") -> Incoming:
    """The request of somebody who may sample. Raises Forbidden, Unauthenticated; CallerGone for half a request."""
    principal = known(scope)
    check_scope(principal, "sample")
    query = scope.get("query_string", b"").decode("latin-1")
    path = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
    return Incoming(
        dialect=dialect,
        raw=await _body(receive),
        path={**path, **scope.get("path_params", {}), "task": task},
        headers={name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]},
        url_session=url_session(scope),
        principal=principal,
    )


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise CallerGone
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _prepared(prepare: Callable[[Incoming], T], incoming: Incoming) -> T:
    """On a thread, unless the request is so short that the way there costs more than the work."""
    if len(incoming.raw) <= SHORT_BYTES:
        return prepare(incoming)
    return await run_in_threadpool(prepare, incoming)


def _opened(prepared: Prepared, principal: Principal, call_id: str, version: int, model: str) -> ModelCall:
    """The record of a call as it is opened."""
    parent = prepared.link.parent
    return ModelCall(
        call_id=call_id,
        session_id=prepared.session.session_id,
        principal=principal.name,
        kind=prepared.kind,
        status="open",
        created_at=time.time(),
        policy_version=version,
        model=model,
        temperature=prepared.request.params.temperature,
        request=prepared.request.body,
        dialect=prepared.dialect.NAME,
        prompt_ids=prepared.prompt_ids,
        parent_call_id=parent.call.call_id if parent else None,
        episode_id=prepared.episode_id,
        fork_reason=prepared.link.fork_reason,
        prompt_hash=prepared.link.prompt_hash,
        kind_reason=prepared.kind_reason,
        harness=prepared.harness,
        agent_id=prepared.session.agent_id,
        session_source=prepared.session.recorded_source,
    )


def _sink(
    parts: ChatParts, prepared: Prepared, call: ModelCall, *more_headers: tuple[bytes, bytes]
) -> StreamSink | BodySink:
    kind = StreamSink if prepared.request.stream else BodySink
    facts = AnswerFacts(
        call_id=call.call_id,
        model=call.model,
        created=call.created_at,
        prompt_tokens=len(call.prompt_ids),
        request=prepared.request,
    )
    return kind(
        prepared.dialect.answer(facts),
        [
            (b"x-practicum-call-id", call.call_id.encode()),
            (b"x-practicum-session-id", call.session_id.encode("latin-1", "replace")),
            (b"x-practicum-session-source", prepared.session.source.encode()),
            (b"x-practicum-version", str(call.policy_version).encode()),
            *more_headers,
        ],
        write_timeout_s=parts.timing.write_timeout_s,
    )
