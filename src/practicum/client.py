"""A small client for feedback, three lines from an answer to a lesson, and for rollouts.

    client = Client()
    client.thumb(response.id, "down")
    client.comment(response.id, "Name the invoice number before the amount.")

Every item is sent under an id made here, so a connection that breaks is answered by sending it again. Errors are
Practicum's own, rebuilt from the server's problem documents. It must not know the server's code.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from practicum.errors import (
    Conflict,
    Forbidden,
    NotFound,
    PracticumError,
    RequestError,
    StoreError,
    Unauthenticated,
    UsageError,
)
from practicum.types.feedback import Feedback, FeedbackForm
from practicum.types.ids import new_id

DEFAULT_BASE_URL = "http://127.0.0.1:8787/v1"
_ATTEMPTS = 3
_PAUSE_S = 0.2
_POLL_S = 20.0  # below the default timeout
_BY_STATUS: dict[int, type[PracticumError]] = {
    400: RequestError,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    503: StoreError,
}


class Client:
    """Gives feedback to a Practicum server, and has it run rollouts.

    Args:
        base_url: the model endpoint's, with or without `/v1`; else `PRACTICUM_BASE_URL`, else this machine.
        api_key: else `PRACTICUM_API_KEY`.
        timeout_s: of one attempt.
        transport: an httpx transport; tests give their own.
        sleep: waits between attempts.

    Methods raise PracticumError subclasses; `call_id` may be the `id` of a chat completion as it came.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        root = (base_url or os.environ.get("PRACTICUM_BASE_URL") or DEFAULT_BASE_URL).rstrip("/")
        key = api_key or os.environ.get("PRACTICUM_API_KEY")
        if not key:
            raise UsageError("The client has no API key.", hint="Pass `api_key` or set PRACTICUM_API_KEY.")
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=root if root.endswith("/v1") else f"{root}/v1",
            headers={"Authorization": f"Bearer {key}"},
            timeout=timeout_s,
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def score(
        self,
        call_id: str | None = None,
        value: float | None = None,
        *,
        session: str | None = None,
        user: str | None = None,
    ) -> Feedback:
        """A finite number, on your own scale."""
        return self._give("score", call_id, value, session, user)

    def thumb(
        self,
        call_id: str | None = None,
        value: str | None = None,
        *,
        session: str | None = None,
        user: str | None = None,
    ) -> Feedback:
        """`up` or `down`; a second one changes the first."""
        return self._give("thumb", call_id, value, session, user)

    def comment(
        self,
        call_id: str | None = None,
        value: str | None = None,
        *,
        session: str | None = None,
        user: str | None = None,
    ) -> Feedback:
        """What should be different, in words."""
        return self._give("comment", call_id, value, session, user)

    def correct(
        self,
        call_id: str | None = None,
        value: str | None = None,
        *,
        session: str | None = None,
        user: str | None = None,
    ) -> Feedback:
        """The answer as it should have been."""
        return self._give("correction", call_id, value, session, user)

    def outcome(
        self,
        call_id: str | None = None,
        value: bool | float | str | None = None,
        *,
        session: str | None = None,
        user: str | None = None,
    ) -> Feedback:
        """What became of it: true or false, a finite number, or a short text."""
        return self._give("outcome", call_id, value, session, user)

    def edit(self, feedback_id: str, value: Any, *, user: str | None = None) -> Feedback:
        """Change an item's value."""
        body = {"value": value} if user is None else {"value": value, "user": user}
        return _feedback(self._send("PATCH", _item_path(feedback_id), body=body))

    def retract(self, feedback_id: str, *, user: str | None = None) -> Feedback:
        """Take an item back."""
        params = {} if user is None else {"user": user}
        response, resent = self._exchange("DELETE", _item_path(feedback_id), params=params)
        if resent and response.status_code == Conflict.status:  # an earlier attempt had arrived
            return _feedback(self._send("GET", _item_path(feedback_id)))
        return _feedback(_checked(response))

    def list(
        self, target: str | None = None, *, source: str | None = None, include_retracted: bool = False, limit: int = 100
    ) -> tuple[Feedback, ...]:
        """The newest `limit` items, newest first; on one call or session, or by one source, where given."""
        params = {"target": target, "source": source, "limit": limit, "include_retracted": include_retracted}
        answer = self._send("GET", "feedback", params={k: v for k, v in params.items() if v is not None})
        return tuple(_feedback(item) for item in answer["data"])

    # -- rollouts ------------------------------------------------------------------------------------------------

    def submit_rollouts(self, task: Mapping[str, Any], *, submission_key: str | None = None) -> dict[str, Any]:
        """Submit a task (the fields of `TaskBody`); the group as it stands. Safe to repeat under the same key.

        Raises: UsageError where the task has a `submission_key` and another one is given.
        """
        own = task.get("submission_key")
        if None not in (submission_key, own) and submission_key != own:
            raise UsageError(
                f"The task has the submission key {own!r}, and {submission_key!r} was given beside it.",
                hint="Give one of the two.",
                param="submission_key",
            )
        body = {**task, "submission_key": submission_key or own or new_id("sub")}
        return dict(self._send("POST", "rollouts", body=body))

    def rollouts(self, group_id: str) -> dict[str, Any]:
        """A group as it stands."""
        return dict(self._send("GET", _group_path(group_id)))

    def rollout_results(self, group_id: str) -> Iterator[dict[str, Any]]:
        """Each result, with its training rows, as its rollout ends; until all have."""
        skip = 0
        while True:
            page = self._send("GET", f"{_group_path(group_id)}/results", params={"skip": skip, "wait_s": _POLL_S})
            yield from page["data"]
            skip += len(page["data"])
            if page["ended"]:
                return

    def cancel_rollouts(self, group_id: str, rollout_id: str | None = None) -> dict[str, Any]:
        """Call a group off, or one rollout of it; the group as it stands then."""
        return dict(self._send("POST", f"{_group_path(group_id)}/cancel", body={"rollout_id": rollout_id}))

    def continue_rollout(self, group_id: str, rollout_id: str, instruction: str, turn: int) -> dict[str, Any]:
        """Give a rollout its instruction number `turn`, counted from 0; the rollout as it stands then."""
        body = {"rollout_id": rollout_id, "instruction": instruction, "turn": turn}
        return dict(self._send("POST", f"{_group_path(group_id)}/continue", body=body))

    def end_rollout(self, group_id: str, rollout_id: str) -> dict[str, Any]:
        """Let a rollout that is kept open go on to its grading."""
        body = {"rollout_id": rollout_id, "end": True}
        return dict(self._send("POST", f"{_group_path(group_id)}/continue", body=body))

    def _give(
        self, form: FeedbackForm, call_id: str | None, value: Any, session: str | None, user: str | None
    ) -> Feedback:
        if (call_id is None) == (session is None):
            raise RequestError("Feedback needs one target.", hint="Give a call id or `session=`.", param="call_id")
        if value is None:
            raise RequestError(f"The {form} has no value.", hint="Give `value`.", param=form)
        body = {form: value, "feedback_id": new_id("fb")}
        body |= {"session_id": session} if call_id is None else {"call_id": call_id}
        if user is not None:
            body["user"] = user
        return _feedback(self._send("POST", "feedback", body=body))

    def _send(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, params: Mapping[str, Any] | None = None
    ) -> Any:
        return _checked(self._exchange(method, path, body=body, params=params)[0])

    def _exchange(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, params: Mapping[str, Any] | None = None
    ) -> tuple[httpx.Response, bool]:
        """The response, and whether the request was sent more than once."""
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                response = self._http.request(method, path, content=content, params=params, headers=headers)
            except httpx.TransportError as error:
                if attempt == _ATTEMPTS:
                    raise PracticumError(
                        f"{self._http.base_url} did not answer: {error}.",
                        hint="Check the address, and that `practicum serve` runs.",
                        code="connection_failed",
                    ) from error
                self._sleep(_PAUSE_S * attempt)
            else:
                return response, attempt > 1
        raise AssertionError("unreachable: the last attempt returns or raises")


def _group_path(group_id: str) -> str:
    return f"rollouts/{quote(group_id, safe='')}"


def _item_path(feedback_id: str) -> str:
    return f"feedback/{quote(feedback_id, safe='')}"


def _checked(response: httpx.Response) -> Any:
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.is_success and isinstance(body, dict):
        return body
    document = body if isinstance(body, dict) else {}
    code = document.get("code", "")
    kind = _kinds().get(code) or _BY_STATUS.get(response.status_code, PracticumError)
    error = kind(
        document.get("detail") or f"The server answered {response.status_code} without a reason.",
        hint=document.get("hint", ""),
        code=code or None,
        param=document.get("param"),
    )
    error.status = response.status_code
    raise error


def _kinds(root: type[PracticumError] = PracticumError) -> dict[str, type[PracticumError]]:
    kinds = {root.code: root}
    for child in root.__subclasses__():
        kinds |= _kinds(child)
    return kinds


def _feedback(document: Mapping[str, Any]) -> Feedback:
    return Feedback(**{field.name: document[field.name] for field in fields(Feedback)})
