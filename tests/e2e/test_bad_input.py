"""What people send by mistake: each gets a status, a code, a cause and a way out, and costs nobody else anything.

Pins: the model route answers in OpenAI's shape, the feedback routes with a problem document; nothing that was refused
is on record, everything that was good is; the server goes on.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from practicum.store import create_key, open_store
from tests.e2e.conftest import Cli

HI = [{"role": "user", "content": "hello"}]
CONTEXT = 400


@dataclass(frozen=True)
class Shop:
    """A running server with a scripted policy, and the keys of two teams."""

    url: str
    home: Path
    keys: dict[str, str]

    def send(self, method: str, path: str, team: str = "anna", **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.keys[team]}", "content-type": "application/json"}
        if "body" in options:
            options["content"] = json.dumps(options.pop("body"))
        return httpx.request(method, f"{self.url}{path}", headers=headers, timeout=30, trust_env=False, **options)

    def answer(self, team: str = "anna") -> str:
        reply = self.send("POST", "/v1/chat/completions", team, body={"model": "practicum", "messages": HI})
        assert reply.status_code == 200, reply.text
        return str(reply.json()["id"])

    def feedback(self, body: Any, team: str = "anna") -> httpx.Response:
        return self.send("POST", "/v1/feedback", team, body=body)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    cli = Cli(tmp_path_factory.mktemp("bad") / "home", "")
    with open_store(cli.home / "practicum.db") as store:
        keys = {team: create_key(store, team, ["sample", "feedback"]) for team in ("anna", "ben")}
    keys["nobody"] = "pk_of_nobody"
    with cli.serving("--model", "scripted", "--set", f"model.context_length={CONTEXT}") as served:
        yield Shop(served.url, cli.home, keys)


@pytest.fixture
def records(shop: Shop) -> Iterator[None]:
    """Around a test: what it sent wrongly left no record, and the server still answers."""
    before = counts(shop.home)
    yield
    assert counts(shop.home) == before
    shop.answer()


def counts(home: Path) -> tuple[int, list[Any]]:
    with open_store(home / "practicum.db") as store:
        return store.count_calls(), store.feedback(include_retracted=True)


def openai_error(reply: httpx.Response, status: int, code: str, *says: str) -> None:
    """OpenAI's shape, with every one of `says` in the message."""
    assert reply.status_code == status and reply.headers["content-type"] == "application/json", reply.text
    assert set(reply.json()) == {"error"} and set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert reply.json()["error"]["code"] == code
    assert all(word in reply.json()["error"]["message"] for word in says), reply.json()


def problem(reply: httpx.Response, status: int, code: str, cause: str, way_out: str) -> None:
    """A problem document, whose detail names the cause and whose hint the way out."""
    assert reply.status_code == status and reply.headers["content-type"] == "application/problem+json", reply.text
    body = reply.json()
    assert {"type", "title", "status", "detail", "code", "request_id"} <= set(body)
    assert (body["status"], body["code"]) == (status, code) and body["type"].endswith(code)
    assert cause in body["detail"] and way_out in body.get("hint", ""), body


# -- the model route -------------------------------------------------------------------------------------------------


def chat(shop: Shop, body: Any, team: str = "anna") -> httpx.Response:
    return shop.send("POST", "/v1/chat/completions", team, body=body)


def test_a_wrong_model_name_is_answered_with_the_names_that_there_are(shop: Shop, records: None) -> None:
    openai_error(chat(shop, {"model": "gpt-9", "messages": HI}), 404, "model_not_found", "'gpt-9'", "`practicum`")
    openai_error(chat(shop, {"model": "practicum@7", "messages": HI}), 404, "model_not_found", "`practicum@0`")


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_is_refused_with_both_lengths(shop: Shop, records: None, stream: bool) -> None:
    long = [{"role": "user", "content": "x" * 1000}]
    reply = chat(shop, {"model": "practicum", "messages": long, "stream": stream})
    openai_error(reply, 400, "context_length_exceeded", f"{CONTEXT} tokens", "Shorten or compact")


@pytest.mark.parametrize("raw", [b"{", b'{"model": "practicum", "messages": [}', b"\xff\xfe", b"[1, 2]", b""])
def test_a_body_that_is_not_json_is_refused_with_the_place(shop: Shop, records: None, raw: bytes) -> None:
    openai_error(
        shop.send("POST", "/v1/chat/completions", content=raw), 400, "invalid_json", "The body", "Send one JSON object"
    )


def test_an_unknown_key_learns_how_to_get_one(shop: Shop, records: None) -> None:
    body = {"model": "practicum", "messages": HI}
    openai_error(chat(shop, body, "nobody"), 401, "invalid_api_key", "not known", "practicum keys")
    problem(shop.feedback({"call_id": "x", "thumb": "up"}, "nobody"), 401, "invalid_api_key", "not known", "keys")


# -- feedback --------------------------------------------------------------------------------------------------------


def test_feedback_on_an_unknown_call_is_refused(shop: Shop, records: None) -> None:
    reply = shop.feedback({"call_id": "chatcmpl-call_none", "thumb": "up"})
    problem(reply, 404, "not_found", "There is no call 'call_none'", "id that the model endpoint returned")


def test_a_score_that_is_no_number_is_refused(shop: Shop) -> None:
    call = shop.answer()
    before = counts(shop.home)
    for word in (b"NaN", b"Infinity", b"-Infinity", b"1e999"):
        raw = b'{"call_id": "%s", "score": %s}' % (call.encode(), word)
        reply = shop.send("POST", "/v1/feedback", content=raw)
        problem(reply, 400, "invalid_json", "number beyond" if word == b"1e999" else word.decode(), "finite")
    for value in ("NaN", None, True, [1]):
        reply = shop.feedback({"call_id": call, "score": value})
        problem(reply, 400, "invalid_request", "does not fit a score", "A score is a finite number")
        assert reply.json()["param"] == "score"
    assert counts(shop.home) == before


def test_a_comment_of_a_megabyte_is_refused_with_the_limit(shop: Shop) -> None:
    call = shop.answer()
    before = counts(shop.home)
    reply = shop.feedback({"call_id": call, "comment": "x" * 1_000_000})
    problem(reply, 400, "invalid_request", "`comment` has 1000000 characters; a comment may have 16384", "Shorten")
    assert counts(shop.home) == before


@pytest.mark.parametrize("raw", [b"{", b'{"call_id": "a", "call_id": "b"}', b"\xff", b'"thumb"'])
def test_feedback_that_is_not_json_is_refused(shop: Shop, records: None, raw: bytes) -> None:
    problem(shop.send("POST", "/v1/feedback", content=raw), 400, "invalid_json", "body", "Send")


def test_nobody_takes_back_what_somebody_else_said(shop: Shop) -> None:
    given = shop.feedback({"call_id": shop.answer(), "comment": "Shorter, please."})
    assert given.status_code == 201
    path = f"/v1/feedback/{given.json()['id']}"
    before = counts(shop.home)
    problem(shop.send("DELETE", path, "ben"), 403, "forbidden", "another source", "administrator")
    problem(
        shop.send("PATCH", path, "ben", body={"value": "Longer."}), 403, "forbidden", "another source", "administrator"
    )
    assert counts(shop.home) == before
    assert shop.send("DELETE", path).json()["retracted"] is True
    problem(shop.send("DELETE", path), 409, "already_retracted", "is retracted already", "")


def test_after_all_of_it_the_good_records_are_there_and_the_server_answers(shop: Shop) -> None:
    call = shop.answer()
    assert shop.feedback({"call_id": call, "thumb": "down"}).status_code == 201
    with open_store(shop.home / "practicum.db") as store:
        calls, items = store.calls(), store.feedback(include_retracted=True)
    assert all(call.status == "complete" and call.principal == "anna" for call in calls)
    assert [item.value for item in items] in (["down"], ["Shorter, please.", "down"])
    ready = httpx.get(f"{shop.url}/readyz", trust_env=False).json()
    assert ready["status"] == "ready" and ready["capture"]["lost"] == 0
