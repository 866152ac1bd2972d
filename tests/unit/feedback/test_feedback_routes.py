"""The feedback routes over a real store: bodies, errors, pages, and who may see and change what."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, Response

from practicum.dialects.problem import MEDIA_TYPE, problem
from practicum.errors import PracticumError, Unauthenticated
from practicum.feedback import Ledger
from practicum.feedback.document import FeedbackBody, FeedbackPage
from practicum.feedback.routes import router
from practicum.store import open_store
from practicum.types.calls import ModelCall
from practicum.types.principals import Principal, Scope

SCOPES: dict[str, frozenset[Scope]] = {
    "team": frozenset({"sample", "feedback"}),
    "other": frozenset({"feedback"}),
    "sampler": frozenset({"sample"}),
    "root": frozenset({"admin"}),
}


async def authenticate(request: Request) -> Principal:
    name = request.headers.get("authorization", "").removeprefix("Bearer ")
    if name not in SCOPES:
        raise Unauthenticated("There is no such key.")
    return Principal(key_id=name, name=name, scopes=SCOPES[name])


async def show(request: Request, error: Exception) -> Response:
    assert isinstance(error, PracticumError)
    return Response(json.dumps(problem(error, "req_1")), status_code=error.status, media_type=MEDIA_TYPE)


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.add_exception_handler(PracticumError, show)
    with open_store(tmp_path / "practicum.db") as store:
        store.put_call(
            ModelCall(
                call_id="call_1",
                session_id="session_1",
                principal="team",
                kind="agent",
                status="complete",
                created_at=1.0,
                policy_version=0,
                model="m",
                request={},
            )
        ).result()
        app.include_router(router(Ledger(store, 100), authenticate))
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://test", headers={"authorization": "Bearer team"}
        ) as client:
            yield client


async def give(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await http.post("/v1/feedback", json=body)
    assert response.status_code == 201, response.text
    FeedbackBody.model_validate_json(response.content)
    return dict(response.json())


async def test_every_form_on_a_call_and_a_session(http: httpx.AsyncClient) -> None:
    for form, value in [("score", 0.5), ("thumb", "up"), ("comment", "no"), ("correction", "yes"), ("outcome", False)]:
        item = await give(http, call_id="call_1", **{form: value})
        assert (item["form"], item["value"], item["object"], item["source"]) == (form, value, "feedback", "team")
        await give(http, session_id="session_1", **{form: value})


async def test_the_chat_bodys_id_is_a_call_id(http: httpx.AsyncClient) -> None:
    item = await give(http, call_id="chatcmpl-call_1", thumb="up")
    assert item["target_id"] == "call_1"
    listed = (await http.get("/v1/feedback", params={"target": "chatcmpl-call_1"})).json()
    assert listed["data"] == [item]


@pytest.mark.parametrize(
    ("raw", "says", "param"),
    [
        ('{"score": 1}', "no target", "call_id"),
        ('{"call_id": "call_1", "session_id": "session_1", "score": 1}', "two targets", "call_id"),
        ('{"call_id": "call_1"}', "no value", None),
        ('{"call_id": "call_1", "score": 1, "thumb": "up"}', "several forms", "thumb"),
        ('{"call_id": "call_1", "score": 1, "stars": 5}', "not known", "stars"),
        ('{"call_id": "call_1", "score": "good job"}', "does not fit a score", "score"),
        ('{"call_id": "call_1", "score": true}', "does not fit a score", "score"),
        ('{"call_id": "call_1", "score": null}', "got nothing", "score"),
        ('{"call_id": "call_1", "score": NaN}', "NaN", None),
        ('{"call_id": "call_1", "score": 1e999}', "beyond", None),
        ('{"call_id": "call_1", "score": 1, "score": 2}', "twice", None),
        ('{"call_id": 7, "score": 1}', "non-empty text", "call_id"),
        ('{"call_id": "call_1", "score": 1, "user": ""}', "non-empty text", "user"),
        ('{"call_id": "call_1", "score": 1, "feedback_id": 3}', "non-empty text", "feedback_id"),
        ("[]", "object", None),
        ("", "not JSON", None),
        ("\ud800", "UTF-8", None),
    ],
)
async def test_r2_a_bad_body_is_a_clear_400(http: httpx.AsyncClient, raw: str, says: str, param: str | None) -> None:
    response = await http.post("/v1/feedback", content=raw.encode("utf-8", "surrogatepass"))
    document = response.json()
    assert response.status_code == document["status"] == 400
    assert response.headers["content-type"] == MEDIA_TYPE
    assert says in document["detail"]
    assert document.get("param") == param
    assert (await http.get("/v1/feedback")).json()["data"] == []


async def test_large_numbers_and_odd_text_come_back_as_they_went(http: httpx.AsyncClient) -> None:
    assert (await give(http, call_id="call_1", score=2**70 + 1))["value"] == 2**70 + 1
    raw = b'{"call_id": "call_1", "comment": "\\ud800 \\u0000"}'
    response = await http.post("/v1/feedback", content=raw)
    assert response.json()["value"] == "\ud800 \0"


async def test_unknown_targets_are_404(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/feedback", json={"call_id": "none", "score": 1})
    assert (response.status_code, response.json()["code"], response.json()["param"]) == (404, "not_found", "call_id")


async def test_edit_get_and_retract(http: httpx.AsyncClient) -> None:
    item = await give(http, call_id="call_1", comment="no", user="anna")
    path = f"/v1/feedback/{item['id']}"
    assert item["source"] == "team/anna"
    assert (await http.patch(path, json={"value": "yes"})).status_code == 403
    edited = (await http.patch(path, json={"value": "yes", "user": "anna"})).json()
    assert (edited["value"], edited["revision"]) == ("yes", 1)
    assert (await http.get(path)).json() == edited
    assert (await http.patch(path, json={"user": "anna"})).json()["param"] == "value"
    assert (await http.delete(path)).status_code == 403
    gone = await http.delete(path, params={"user": "anna"})
    assert (gone.status_code, gone.json()["retracted"]) == (200, True)
    again = await http.delete(path, params={"user": "anna"})
    assert (again.status_code, again.json()["code"]) == (409, "already_retracted")


async def test_pages(http: httpx.AsyncClient) -> None:
    ids = [(await give(http, call_id="call_1", comment=str(number)))["id"] for number in range(5)]
    first = (await http.get("/v1/feedback", params={"limit": 2})).json()
    assert [item["id"] for item in first["data"]] == [ids[4], ids[3]]
    FeedbackPage.model_validate(first)
    assert (first["object"], first["first_id"], first["last_id"], first["has_more"]) == ("list", ids[4], ids[3], True)
    rest = (await http.get("/v1/feedback", params={"limit": 3, "after": first["last_id"]})).json()
    assert ([item["id"] for item in rest["data"]], rest["has_more"]) == ([ids[2], ids[1], ids[0]], False)
    oldest = (await http.get("/v1/feedback", params={"order": "asc", "limit": 1})).json()
    assert oldest["first_id"] == ids[0]


async def test_a_key_sees_its_own_principals_feedback_and_an_administrator_all(http: httpx.AsyncClient) -> None:
    item = await give(http, call_id="call_1", comment="no", user="anna")
    path = f"/v1/feedback/{item['id']}"
    other, root = {"authorization": "Bearer other"}, {"authorization": "Bearer root"}
    assert (await http.get("/v1/feedback", headers=other)).json()["data"] == []
    assert (await http.get("/v1/feedback", params={"source": "team/anna"}, headers=other)).json()["data"] == []
    assert (await http.get(path, headers=other)).status_code == 404
    assert (await http.patch(path, json={"value": "x"}, headers=other)).status_code == 403
    assert (await http.delete(path, headers=other)).status_code == 403
    assert (await http.get("/v1/feedback", headers=root)).json()["data"] == [item]
    assert (await http.get("/v1/feedback", params={"source": "team/anna"}, headers=root)).json()["data"] == [item]
    assert (await http.patch(path, json={"value": "x"}, headers=root)).json()["source"] == "team/anna"
    assert (await http.delete(path, headers=root)).json()["retracted"] is True


@pytest.mark.parametrize(("key", "status"), [("nobody", 401), ("sampler", 403)])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/feedback"),
        ("GET", "/v1/feedback"),
        ("GET", "/v1/feedback/x"),
        ("PATCH", "/v1/feedback/x"),
        ("DELETE", "/v1/feedback/x"),
    ],
)
async def test_every_route_asks_for_a_key_with_the_scope(
    http: httpx.AsyncClient, key: str, status: int, method: str, path: str
) -> None:
    response = await http.request(method, path, headers={"authorization": f"Bearer {key}"})
    assert response.status_code == status
