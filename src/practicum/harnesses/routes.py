"""The rollout routes: HTTP to service and back.

    POST /v1/rollouts                    a task; 201 with its group, the same group for the same `submission_key`
    GET  /v1/rollouts                    the caller's groups, newest first
    GET  /v1/rollouts/GROUP              how it stands
    GET  /v1/rollouts/GROUP/results      results in the order of their ends; `skip`, `wait_s`
    POST /v1/rollouts/GROUP/cancel       the group, or one rollout of it
    POST /v1/rollouts/GROUP/continue     a further instruction for a rollout

A key needs the scope `rollout`, and sees the groups of its own principal; an administrator's, all. Errors are raised
for the application's handlers to render.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel

from practicum.errors import Forbidden, NotFound, RequestError
from practicum.harnesses.service import RolloutService
from practicum.harnesses.wire import (
    CancelBody,
    ContinueBody,
    GroupBody,
    ResultsBody,
    RolloutBody,
    TaskBody,
    causes_table,
    group_body,
    result_body,
    rollout_body,
)
from practicum.types.principals import Principal
from practicum.types.rollouts import Group

Authenticate = Callable[[Request], Awaitable[Principal]]

LONGEST_WAIT_S = 60.0


class _Ascii(Response):
    """JSON in ASCII: text with a lone surrogate has no UTF-8."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode()


def router(service: RolloutService, authenticate: Authenticate) -> APIRouter:
    """The routes over `service`; `authenticate` tells who asks, or raises."""
    routes = APIRouter(tags=["rollouts"])

    async def asker(request: Request) -> Principal:
        principal = await authenticate(request)
        if not principal.may("rollout"):
            raise Forbidden("This key may not run rollouts.", hint="Use a key with the scope `rollout`.")
        return principal

    caller = Annotated[Principal, Depends(asker)]

    def seen(group_id: str, principal: Principal) -> Group:
        group = service.status(group_id)
        if not principal.may("admin") and group.principal != principal.name:
            raise NotFound(f"There is no group of rollouts {group_id!r}.", param="group_id")
        return group

    @routes.post("/v1/rollouts", status_code=201, response_model=GroupBody, description=causes_table())
    async def submit(body: TaskBody, principal: caller) -> Response:
        group_id = await service.submit(body.task(), key=body.submission_key, principal=principal.name)
        return _respond(group_body(service.status(group_id)), status=201)

    @routes.get("/v1/rollouts", response_model=list[GroupBody])
    async def list_groups(principal: caller, limit: Annotated[int, Query(ge=1, le=100)] = 20) -> Response:
        found = service.groups(None if principal.may("admin") else principal.name, limit)
        return _Ascii([group_body(service.status(group.group_id)).model_dump(mode="json") for group in found])

    @routes.get("/v1/rollouts/{group_id}", response_model=GroupBody)
    async def status(group_id: str, principal: caller) -> Response:
        return _respond(group_body(seen(group_id, principal)))

    @routes.get("/v1/rollouts/{group_id}/results", response_model=ResultsBody)
    async def results(
        group_id: str,
        principal: caller,
        wait_s: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False)] = 0.0,
        skip: Annotated[int, Query(ge=0, description="Results that the caller has already.")] = 0,
        limit: Annotated[int, Query(ge=1, le=100)] = 100,
    ) -> Response:
        seen(group_id, principal)
        ended, all_ended = await service.wait(group_id, more_than=skip, wait_s=wait_s)
        wanted = ended[skip : skip + limit]
        data = [result_body(await service.result(rollout_id)) for rollout_id in wanted]
        return _respond(ResultsBody(data=data, ended=all_ended and skip + len(wanted) >= len(ended)))

    @routes.post("/v1/rollouts/{group_id}/cancel", response_model=GroupBody)
    async def cancel(group_id: str, principal: caller, body: CancelBody | None = None) -> Response:
        seen(group_id, principal)
        return _respond(group_body(await service.cancel(group_id, body.rollout_id if body else None)))

    @routes.post("/v1/rollouts/{group_id}/continue", response_model=RolloutBody)
    async def go_on(group_id: str, body: ContinueBody, principal: caller) -> Response:
        if body.rollout_id not in {one.rollout_id for one in seen(group_id, principal).rollouts}:
            raise NotFound(f"There is no rollout {body.rollout_id!r} in this group.", param="rollout_id")
        if (body.instruction is None) != body.end:
            raise RequestError("Send either `instruction` or `end: true`.", param="instruction")
        if body.instruction is None:
            return _respond(rollout_body(service.let_end(body.rollout_id)))
        return _respond(rollout_body(await service.go_on(body.rollout_id, body.instruction, turn=body.turn)))

    return routes


def _respond(body: BaseModel, *, status: int = 200) -> Response:
    return _Ascii(body.model_dump(mode="json"), status_code=status)
