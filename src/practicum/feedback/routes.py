"""The feedback routes: HTTP to ledger and back.

    POST   /v1/feedback        {"call_id" | "session_id", one form, optional "user", optional "feedback_id"}
    GET    /v1/feedback        target, source, include_retracted, limit, after, order
    GET    /v1/feedback/{id}
    PATCH  /v1/feedback/{id}   {"value", optional "user"}
    DELETE /v1/feedback/{id}   user; retracts, and returns the item

An item's source is the key's principal, or `principal/user` where the request names a user. A key sees and changes
what its own principal and that principal's users gave; an administrator's key, everything. Errors are raised for
the application's handlers to render.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from practicum.dialects.registry import call_id_in
from practicum.dialects.strict_json import parse_object
from practicum.errors import Forbidden, NotFound, RequestError
from practicum.feedback.document import EDIT, GIVE, FeedbackBody, FeedbackPage
from practicum.feedback.ledger import Ledger
from practicum.feedback.values import check_name
from practicum.types.feedback import FORM_MEANING, Feedback, FeedbackForm, TargetKind
from practicum.types.principals import Principal

Authenticate = Callable[[Request], Awaitable[Principal]]

_TARGETS: dict[str, TargetKind] = {"call_id": "call", "session_id": "session"}
_LARGEST_PAGE = 1000


def router(ledger: Ledger, authenticate: Authenticate) -> APIRouter:
    """The routes over `ledger`; `authenticate` tells who asks, or raises."""
    routes = APIRouter(tags=["feedback"])

    async def giver(request: Request) -> Principal:
        principal = await authenticate(request)
        if not principal.may("feedback"):
            raise Forbidden("This key may not give feedback.", hint="Use a key with the scope `feedback`.")
        return principal

    caller = Annotated[Principal, Depends(giver)]

    @routes.post("/v1/feedback", status_code=201, response_model=FeedbackBody, openapi_extra=GIVE)
    async def give(request: Request, principal: caller) -> Response:
        body = parse_object(await request.body())
        target_kind, target_id = _target(body)
        form = _form(body)
        _refuse_unknown(body, {*_TARGETS, *FORM_MEANING, "user", "feedback_id"})
        source = _source(principal, body.get("user"))
        pending = ledger.give(target_kind, target_id, form, body[form], source, body.get("feedback_id"), param=form)
        return _respond(_item(await asyncio.wrap_future(pending)), status=201)

    @routes.get("/v1/feedback", response_model=FeedbackPage)
    async def list_feedback(
        principal: caller,
        target: str | None = None,
        source: str | None = None,
        include_retracted: bool = False,
        limit: Annotated[int, Query(ge=1, le=_LARGEST_PAGE)] = 20,
        after: str | None = None,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        found = ledger.list(
            target_id=None if target is None else call_id_in(target),
            source=source,
            include_retracted=include_retracted,
            principal=_visible_to(principal),
            limit=limit + 1,
            after=after,
            newest_first=order == "desc",
        )
        return _respond(_page([_item(item) for item in found[:limit]], has_more=len(found) > limit))

    @routes.get("/v1/feedback/{feedback_id}", response_model=FeedbackBody)
    async def get(feedback_id: str, principal: caller) -> Response:
        return _respond(_item(_seen(ledger.get(feedback_id), principal)))

    @routes.patch("/v1/feedback/{feedback_id}", response_model=FeedbackBody, openapi_extra=EDIT)
    async def edit(feedback_id: str, request: Request, principal: caller) -> Response:
        body = parse_object(await request.body())
        _refuse_unknown(body, {"value", "user"})
        if "value" not in body:
            raise RequestError("`value` is missing.", hint="Send the item's new value.", param="value")
        source = _source(principal, body.get("user"))
        pending = ledger.edit(feedback_id, body["value"], source, admin=_is_admin(principal))
        return _respond(_item(await asyncio.wrap_future(pending)))

    @routes.delete("/v1/feedback/{feedback_id}", response_model=FeedbackBody)
    async def retract(
        feedback_id: str,
        principal: caller,
        user: str | None = None,
    ) -> Response:
        pending = ledger.retract(feedback_id, _source(principal, user), admin=_is_admin(principal))
        return _respond(_item(await asyncio.wrap_future(pending)))

    return routes


def _target(body: dict[str, Any]) -> tuple[TargetKind, str]:
    named = [name for name in _TARGETS if name in body]
    if len(named) != 1:
        problem = "names no target" if not named else "names two targets"
        raise RequestError(f"The feedback {problem}.", hint="Send either `call_id` or `session_id`.", param="call_id")
    target_id = check_name(body[named[0]], named[0])
    return _TARGETS[named[0]], call_id_in(target_id) if named[0] == "call_id" else target_id


def _form(body: dict[str, Any]) -> FeedbackForm:
    named = [form for form in FORM_MEANING if form in body]
    if not named:
        raise RequestError("The feedback has no value.", hint=f"Send one of {', '.join(FORM_MEANING)}.")
    if len(named) > 1:
        raise RequestError(
            f"The feedback has several forms: {', '.join(named)}.",
            hint="Send them as separate items.",
            param=named[1],
        )
    return named[0]


def _refuse_unknown(body: dict[str, Any], known: set[str]) -> None:
    for name in body:
        if name not in known:
            raise RequestError(
                f"The field {name[:60]!r} is not known here.",
                hint=f"Fields are {', '.join(sorted(known))}.",
                param=name,
            )


def _source(principal: Principal, user: Any) -> str:
    return principal.name if user is None else f"{principal.name}/{check_name(user, 'user')}"


def _is_admin(principal: Principal) -> bool:
    return "admin" in principal.scopes


def _visible_to(principal: Principal) -> str | None:
    return None if _is_admin(principal) else principal.name


def _seen(item: Feedback, principal: Principal) -> Feedback:
    if _is_admin(principal) or item.source.partition("/")[0] == principal.name:
        return item
    raise NotFound(f"There is no feedback {item.feedback_id!r}.")


def _item(item: Feedback) -> dict[str, Any]:
    return {"id": item.feedback_id, "object": "feedback", **asdict(item)}


def _page(data: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


def _respond(content: dict[str, Any], *, status: int = 200) -> Response:
    # ASCII, because text with a lone surrogate has no UTF-8.
    return Response(json.dumps(content), status_code=status, media_type="application/json")
