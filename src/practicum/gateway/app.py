"""The application: routes, their errors, and the task that follows the live policy.

    POST /v1/chat/completions     also without /v1, and with any route below /s/SESSION/
    GET  /v1/models[/NAME]        the live name, its aliases, and each released version
    GET  /  /healthz  /readyz     probes; they need no key

Everything else comes in as routers (feedback, for one) and stands behind the same key check.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from practicum.capture.recorder import Mode, Recorder
from practicum.config import Config
from practicum.dialects import openai_chat
from practicum.errors import NotFound, PracticumError, RequestError
from practicum.gateway.auth import Lookup, authenticate, check_scope
from practicum.gateway.chat import ChatParts, ChatRoute
from practicum.gateway.edge import Edge, respond
from practicum.gateway.engine_watch import EngineWatch
from practicum.gateway.health import readiness
from practicum.gateway.idempotency import InProgress
from practicum.gateway.model_names import ModelNames
from practicum.gateway.prepare import Preparer
from practicum.gateway.swap import Policies, Swapper
from practicum.gateway.timing import Timing
from practicum.renderers import Renderer
from practicum.store import Store, lookup
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
) -> FastAPI:
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
    """
    parts = _parts(config, store, registry, sampler, renderer, mode, timing)
    app = FastAPI(title="Practicum", openapi_url=None, lifespan=_lifespan(parts, store))
    app.state.parts = parts
    _add_routes(app, parts, store, registry)
    for router in routers:
        app.include_router(router)
    for kind in (PracticumError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _answer_error)
    app.add_middleware(
        Edge,
        lookup=key_lookup or partial(lookup, store),
        max_body_bytes=config.server.max_body_bytes,
        body_timeout_s=config.server.body_timeout_s,
        open_paths=open_paths,
    )
    return app


def _parts(
    config: Config,
    store: Store,
    registry: Policies,
    sampler: Sampler,
    renderer: Renderer,
    mode: Mode,
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
        ),
        recorder=Recorder(store, mode),
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
        await parts.swapper.look()
        follower = asyncio.create_task(parts.swapper.run())
        try:
            yield
        finally:
            follower.cancel()
            with suppress(asyncio.CancelledError):
                await follower

    return lifespan


def _add_routes(app: FastAPI, parts: ChatParts, store: Store, registry: Policies) -> None:
    chat = ChatRoute(parts)

    async def complete(request: Request) -> Response:
        return await chat(request)

    async def models(request: Request) -> Response:
        check_scope(await authenticate(request), "sample")
        listed = parts.names.listed(await run_in_threadpool(registry.list))
        objects = [openai_chat.model_object(name, int(created)) for name, created in listed]
        wanted = request.path_params.get("name")
        if wanted is None:
            return JSONResponse({"object": "list", "data": objects})
        for shown in objects:
            if shown["id"] == wanted:
                return JSONResponse(shown)
        raise NotFound(f"There is no model {wanted[:80]!r} here.", code="model_not_found", param="model")

    async def probe(request: Request) -> Response:
        return JSONResponse({"service": "practicum"})

    async def healthy(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        status, report = readiness(parts, store)
        return JSONResponse(report, status_code=status)

    for path in ("/v1/chat/completions", "/chat/completions"):
        app.router.routes.append(Route(path, complete, methods=["POST"]))
    for path in ("/v1/models", "/models", "/v1/models/{name:path}", "/models/{name:path}"):
        app.router.routes.append(Route(path, models, methods=["GET"]))
    for path, endpoint in (("/", probe), ("/healthz", healthy), ("/readyz", ready)):
        app.router.routes.append(Route(path, endpoint, methods=["GET"]))


async def _answer_error(request: Request, error: Exception) -> Response:
    return _ErrorResponse(_in_tree(error))


def _in_tree(error: Exception) -> Exception:
    """The framework's own errors in the words of the tree."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return RequestError(f"`{where}`: {first['msg']}.", param=where)
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return NotFound("There is nothing at this address.", code="unknown_url")
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
