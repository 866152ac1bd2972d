"""The client: what it sends, the errors it rebuilds, and that sending again is harmless."""

import json
import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from practicum.client import Client
from practicum.errors import Conflict, Forbidden, PracticumError, RequestError, StoreError, UsageError

ITEM: dict[str, Any] = {
    "id": "fb_1",
    "object": "feedback",
    "feedback_id": "fb_1",
    "target_kind": "call",
    "target_id": "call_1",
    "form": "score",
    "value": 1,
    "source": "team",
    "created_at": 1.0,
    "updated_at": 1.0,
    "revision": 0,
    "retracted": False,
}


class Server:
    """Plays responses in order and keeps what was sent; an exception as a response is raised."""

    def __init__(self, *responses: httpx.Response | Exception) -> None:
        self.responses = list(responses)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        response = self.responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests]


def connect(server: Server, base_url: str = "http://test", waits: list[float] | None = None) -> Client:
    pauses: list[float] = [] if waits is None else waits
    return Client(base_url, "pk_test", transport=httpx.MockTransport(server), sleep=pauses.append)


def refusal(status: int, **document: Any) -> httpx.Response:
    return httpx.Response(status, json=document)


@pytest.mark.parametrize(
    ("act", "form", "value"),
    [
        (lambda client: client.score("call_1", 0.5), "score", 0.5),
        (lambda client: client.thumb("call_1", "up"), "thumb", "up"),
        (lambda client: client.comment("call_1", "no"), "comment", "no"),
        (lambda client: client.correct("call_1", "yes"), "correction", "yes"),
        (lambda client: client.outcome("call_1", False), "outcome", False),
    ],
)
def test_each_form_is_one_request(act: Callable[[Client], Any], form: str, value: Any) -> None:
    server = Server(httpx.Response(201, json=ITEM))
    item = act(connect(server))
    (body,) = server.bodies
    assert body.pop("feedback_id").startswith("fb_")
    assert body == {"call_id": "call_1", form: value}
    assert server.requests[0].url == "http://test/v1/feedback"
    assert server.requests[0].headers["authorization"] == "Bearer pk_test"
    assert item.feedback_id == "fb_1"


def test_a_session_and_a_user() -> None:
    server = Server(httpx.Response(201, json=ITEM))
    connect(server, "http://test/v1/").score(session="s", value=0, user="anna")
    (body,) = server.bodies
    del body["feedback_id"]
    assert body == {"session_id": "s", "score": 0, "user": "anna"}
    assert server.requests[0].url == "http://test/v1/feedback"


def test_no_target_two_targets_or_no_value_are_refused_before_sending() -> None:
    client = connect(Server())
    for arguments in [{"value": 1}, {"call_id": "c", "session": "s", "value": 1}, {"call_id": "c"}]:
        with pytest.raises(RequestError):
            client.score(**arguments)


def test_w14_a_broken_connection_is_answered_by_the_same_item_again() -> None:
    waits: list[float] = []
    server = Server(httpx.ConnectError("refused"), httpx.ReadError("reset"), httpx.Response(201, json=ITEM))
    connect(server, waits=waits).score("call_1", 1)
    first, second, third = server.bodies
    assert first == second == third
    assert waits == [0.2, 0.4]


def test_a_server_that_stays_away_is_named() -> None:
    server = Server(*[httpx.ConnectError("refused")] * 3)
    with pytest.raises(PracticumError, match="http://test/v1/ did not answer") as caught:
        connect(server).score("call_1", 1)
    assert caught.value.code == "connection_failed"


def test_two_items_have_two_ids() -> None:
    server = Server(httpx.Response(201, json=ITEM), httpx.Response(201, json=ITEM))
    client = connect(server)
    client.comment("call_1", "no")
    client.comment("call_1", "no")
    assert server.bodies[0]["feedback_id"] != server.bodies[1]["feedback_id"]


def test_errors_are_practicums_own() -> None:
    document = {"detail": "No.", "hint": "Try.", "code": "forbidden", "param": "user"}
    with pytest.raises(Forbidden) as caught:
        connect(Server(refusal(403, **document))).score("call_1", 1)
    error = caught.value
    assert (error.message, error.hint, error.code, error.param, error.status) == (
        "No.",
        "Try.",
        "forbidden",
        "user",
        403,
    )


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (refusal(409, detail="Used.", code="feedback_id_used"), Conflict),
        (httpx.Response(503, text="<html>gone</html>"), StoreError),
        (httpx.Response(500, json=["odd"]), PracticumError),
        (httpx.Response(200, text="not json"), PracticumError),
    ],
)
def test_an_unknown_code_falls_back_to_the_status(response: httpx.Response, kind: type[PracticumError]) -> None:
    with pytest.raises(PracticumError) as caught:
        connect(Server(response)).score("call_1", 1)
    assert type(caught.value) is kind


def test_what_is_no_number_reaches_the_server_as_it_is_and_is_never_zero() -> None:
    server = Server(refusal(400, detail="The body holds NaN, which is not JSON.", code="invalid_json"))
    with pytest.raises(RequestError, match="NaN"):
        connect(server).score("call_1", math.nan)


def test_edit_retract_and_list() -> None:
    page = {"object": "list", "data": [ITEM], "first_id": "fb_1", "last_id": "fb_1", "has_more": False}
    server = Server(*[httpx.Response(200, json=ITEM)] * 2, httpx.Response(200, json=page))
    client = connect(server)
    client.edit("a/b", 2, user="anna")
    client.retract("fb_1", user="anna")
    (item,) = client.list("call_1", source="team")
    assert item.value == 1
    edit, retract, listing = server.requests
    assert (edit.method, edit.url.raw_path) == ("PATCH", b"/v1/feedback/a%2Fb")
    assert json.loads(edit.content) == {"value": 2, "user": "anna"}
    assert (retract.method, str(retract.url)) == ("DELETE", "http://test/v1/feedback/fb_1?user=anna")
    assert dict(listing.url.params) == {
        "target": "call_1",
        "source": "team",
        "limit": "100",
        "include_retracted": "false",
    }


def test_a_retraction_whose_first_answer_was_lost_succeeds() -> None:
    gone = httpx.Response(200, json=ITEM | {"retracted": True})
    conflict = {"detail": "Already.", "code": "already_retracted"}
    assert connect(Server(httpx.ReadError("reset"), refusal(409, **conflict), gone)).retract("fb_1").retracted
    with pytest.raises(Conflict):
        connect(Server(refusal(409, **conflict))).retract("fb_1")


def test_no_key_says_where_one_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRACTICUM_API_KEY", raising=False)
    with pytest.raises(UsageError, match="PRACTICUM_API_KEY"):
        Client("http://test")


def test_the_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRACTICUM_API_KEY", "pk_env")
    monkeypatch.setenv("PRACTICUM_BASE_URL", "http://elsewhere/v1")
    server = Server(httpx.Response(201, json=ITEM))
    with Client(transport=httpx.MockTransport(server)) as client:
        client.thumb("call_1", "up")
    assert server.requests[0].url == "http://elsewhere/v1/feedback"
    assert server.requests[0].headers["authorization"] == "Bearer pk_env"


def test_two_submission_keys_for_one_task_are_refused_before_anything_is_sent() -> None:
    with Client("http://127.0.0.1:1", "pk", sleep=lambda s: None) as client:
        with pytest.raises(UsageError, match="submission key 'a', and 'b'"):
            client.submit_rollouts({"submission_key": "a"}, submission_key="b")
        with pytest.raises(PracticumError, match="did not answer"):
            client.submit_rollouts({"submission_key": "a"}, submission_key="a")
