"""The client against the real routes over a socket: from an answer's id to an item on record."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI, Request, Response

from practicum.client import Client
from practicum.dialects.problem import MEDIA_TYPE, problem
from practicum.errors import Conflict, NotFound, PracticumError, RequestError, Unauthenticated
from practicum.feedback import Ledger
from practicum.feedback.routes import router
from practicum.store import Store, create_key, lookup, open_store
from practicum.types.calls import ModelCall
from practicum.types.principals import Principal


class Server(uvicorn.Server):
    """Tells when it listens."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(uvicorn.Config(app, port=0, log_level="error"))
        self.listening = threading.Event()

    async def startup(self, sockets: list[object] | None = None) -> None:
        await super().startup(sockets)  # type: ignore[arg-type]
        self.listening.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}"


def make_app(store: Store) -> FastAPI:
    app = FastAPI()

    async def authenticate(request: Request) -> Principal:
        principal = lookup(store, request.headers.get("authorization", "").removeprefix("Bearer "))
        if principal is None:
            raise Unauthenticated("There is no such key.")
        return principal

    async def show(request: Request, error: Exception) -> Response:
        assert isinstance(error, PracticumError)
        return Response(json.dumps(problem(error, "req_1")), status_code=error.status, media_type=MEDIA_TYPE)

    app.add_exception_handler(PracticumError, show)
    app.include_router(router(Ledger(store), authenticate))
    return app


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "practicum.db") as opened:
        yield opened


@pytest.fixture
def url(store: Store) -> Iterator[str]:
    server = Server(make_app(store))
    thread = threading.Thread(target=server.run)
    thread.start()
    assert server.listening.wait(30)
    yield server.url
    server.should_exit = True
    thread.join()


def test_feedback_from_the_client_is_on_record(store: Store, url: str) -> None:
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
    with Client(url, create_key(store, "team", ["feedback"])) as client:
        thumb = client.thumb("chatcmpl-call_1", "down", user="anna")
        assert client.thumb("call_1", "up", user="anna").feedback_id == thumb.feedback_id
        comment = client.comment("call_1", "Name the number. \ud800\0")
        outcome = client.outcome(session="session_1", value=False)
        assert client.edit(comment.feedback_id, "Shorter.").revision == 1
        assert client.retract(outcome.feedback_id).retracted
        assert [item.value for item in client.list("call_1")] == ["Shorter.", "up"]
        with pytest.raises(NotFound):
            client.score("none", 1)
        with pytest.raises(RequestError, match="NaN"):
            client.score("call_1", float("nan"))
        with pytest.raises(Conflict):
            client.retract(outcome.feedback_id)
    assert len(store.feedback(include_retracted=True)) == 3
    with Client(url, "pk_wrong") as stranger, pytest.raises(Unauthenticated):
        stranger.list()
