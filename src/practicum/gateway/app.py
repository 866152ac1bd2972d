"""The application: routes, their errors, and the task that follows the live policy.

    POST /v1/chat/completions  /v1/completions  /v1/responses  /v1/messages[/count_tokens]
    POST /v1beta/models/NAME:generateContent  :streamGenerateContent  :countTokens
    GET  /v1/models[/NAME]        the live name, its aliases, and each released version; /v1beta for Gemini's shape
    GET  /  /healthz  /readyz     probes; they need no key
    GET  /openapi.json            of the routes that are ours; any key opens it

All of them also without the version, and below /s/SESSION/.

Everything else comes in as routers (feedback, for one) and stands behind the same key check.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from practicum.capture.recorder import Mode, Recorder
from practicum.capture.stalls import Stalls
from practicum.config import Config
from practicum.dialects import anthropic_messages, gemini, openai_chat
from practicum.errors import NotFound, PracticumError, RequestError
from practicum.gateway.auth import Lookup, authenticate, check_scope
from practicum.gateway.chat import ChatParts, ChatRoute, CountRoute
from practicum.gateway.edge import Edge, respond
from practicum.gateway.endpoints import CHAT_PATHS, GEMINI_VERSIONS, VERSIONS, dialect_of
from practicum.gateway.engine_watch import EngineWatch
from practicum.gateway.health import readiness
from practicum.gateway.idempotency import InProgress
from practicum.gateway.model_names import ModelNames
from practicum.gateway.openapi import OPENAPI_PATH, openapi_document
from practicum.gateway.prepare import Preparer
from practicum.gateway.swap import Policies, Swapper
from practicum.gateway.timing import Timing
from practicum.renderers import Renderer
from practicum.store import Holders, Store
from practicum.types.seams import Sampler


def create_app(
    config: Config,
    store: Store,
    registry: Policies,
    sampler: Sampler,
    renderer: Renderer,
    *,
    routers: Sequence[APIRouter] = (),
    mode: Mode = "live",
    key_lookup: Lookup | None = None,
    open_paths: Collection[str] = (),
    timing: Timing = Timing(),
    stalls: Stalls | None = None,
) -> Edge:
    """The ASGI application of the model endpoint.

    Args:
        config: sections `server`, `gateway` and `model`.
        store: where calls are recorded and keys are kept.
        registry: who is live.
        sampler: the engine.
        renderer: the template and tokenizer of the engine's model.
        routers: further routes; `gateway.authenticate` tells them who asks.
        mode: what a store that fails means for a call, see `capture`.
        key_lookup: holder of a key; the store's own by default.
        open_paths: further paths that need no key.
        timing: how long to wait for whom.
        stalls: told when a session's calls wait for us, and what was refused before it was a call.
    """
    recorder = Recorder(store, mode, stalls=stalls, again_s=timing.record_again_s)
    parts = _parts(config, store, registry, sampler, renderer, recorder, timing)
    app = FastAPI(title="Practicum", openapi_url=None, lifespan=_lifespan(parts, store))
    direct = {version + path: ChatRoute(parts, dialect) for path, dialect in CHAT_PATHS for version in VERSIONS}
    _add_routes(app, parts, store, registry, direct)
    for router in routers:
        app.include_router(router)
    for kind in (PracticumError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _answer_error)
    return Edge(
        app,
        lookup=key_lookup or Holders(store),
        max_body_bytes=config.server.max_body_bytes,
        body_timeout_s=config.server.body_timeout_s,
        open_paths=open_paths,
        direct=direct,
        stalls=parts.recorder.stalls,
    )


def _parts(
    config: Config,
    store: Store,
    registry: Policies,
    sampler: Sampler,
    renderer: Renderer,
    recorder: Recorder,
    timing: Timing,
) -> ChatParts:
    names = ModelNames(config.gateway.model_name, config.gateway.aliases)
    longest = config.model.context_length or sampler.context_length
    return ChatParts(
        store=store,
        in_progress=InProgress(),
        preparer=Preparer(
            store,
            registry,
            renderer,
            names,
            context_length=min(longest, sampler.context_length),
            default_max_tokens=config.gateway.default_max_tokens,
            dropped_reasoning=config.gateway.dropped_reasoning,
        ),
        recorder=recorder,
        renderer=renderer,
        sampler=sampler,
        swapper=Swapper(registry, sampler, poll_s=config.gateway.policy_poll_s),
        names=names,
        watch=EngineWatch(timing.stall_s),
        timing=timing,
    )


def _lifespan(parts: ChatParts, store: Store) -> Any:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with suppress(PracticumError):  # a store that is down now shows in the readiness report
            await asyncio.wrap_future(store.interrupt_open_calls(time.time()))
            for principal, prompt_hash in await run_in_threadpool(store.undelivered):
                parts.preparer.undelivered(principal, prompt_hash)
        await parts.swapper.look()
        follower = asyncio.create_task(parts.swapper.run())
        try:
            yield
        finally:
            follower.cancel()
            with suppress(asyncio.CancelledError):
                await follower

    return lifespan


def _add_routes(
    app: FastAPI, parts: ChatParts, store: Store, registry: Policies, direct: Mapping[str, ChatRoute]
) -> None:
    async def models(request: Request) -> Response:
        return await _models(request, parts, registry)

    async def probe(request: Request) -> Response:
        return JSONResponse({"service": "practicum"})

    async def healthy(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        status, report = readiness(parts, store)
        return JSONResponse(report, status_code=status)

    def add(method: str, path: str, endpoint: Callable[[Request], Awaitable[Response]] | ASGIApp) -> None:
        app.router.routes.append(Route(path, endpoint, methods=[method]))

    for path, route in direct.items():
        add("POST", path, route)
    for version in VERSIONS:
        add("POST", f"{version}/messages/count_tokens", CountRoute(parts, anthropic_messages))
        add("GET", f"{version}/responses", _no_websocket)
    for version in GEMINI_VERSIONS:
        add("POST", version + "/models/{model:path}:countTokens", CountRoute(parts, gemini))
        add("POST", version + "/models/{model:path}:{method}", ChatRoute(parts, gemini))
        for path in ("/models", "/models/{name:path}"):
            add("GET", version + path, models)

    async def document(request: Request) -> Response:
        return JSONResponse(openapi_document(app))

    add("GET", OPENAPI_PATH, document)
    for path, endpoint in (("/", probe), ("/api/hello", probe), ("/healthz", healthy), ("/readyz", ready)):
        add("GET", path, endpoint)


async def _models(request: Request, parts: ChatParts, registry: Policies) -> Response:
    """The list of models, or one of it, in the caller's shape."""
    check_scope(await authenticate(request), "sample")
    dialect = dialect_of(request.scope["path"], request.scope["headers"]) or openai_chat
    listed = parts.names.listed(await run_in_threadpool(registry.list))
    wanted = request.path_params.get("name")
    if wanted is None:
        return JSONResponse(dialect.model_list([dialect.model_object(name, int(created)) for name, created in listed]))
    for name, created in listed:
        if name == wanted:
            return JSONResponse(dialect.model_object(name, int(created)))
    raise NotFound(f"There is no model {wanted[:80]!r} here.", code="model_not_found", param="model")


async def _no_websocket(request: Request) -> Response:
    """A harness that tries a WebSocket first (Codex) falls back to HTTP at once at this status, and at no other."""
    raise HTTPException(426 if "upgrade" in request.headers else 405, "Send a POST; WebSockets are not offered.")


async def _answer_error(request: Request, error: Exception) -> Response:
    return _ErrorResponse(_in_tree(error))


def _in_tree(error: Exception) -> Exception:
    """The framework's own errors in the words of the tree."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        return RequestError(f"`{where}`: {first['msg']}.", param=where)
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return NotFound(
                "There is nothing at this address.",
                code="unknown_url",
                hint="OpenAI base URLs end in /v1, the others have none; rollouts need `serve --rollouts`.",
            )
        known = RequestError(str(error.detail), code="method_not_allowed" if error.status_code == 405 else None)
        known.status = error.status_code
        return known
    return error


class _ErrorResponse(Response):
    def __init__(self, error: Exception) -> None:
        super().__init__(status_code=getattr(error, "status", 500))
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(scope, send, self._error)
