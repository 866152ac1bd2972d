"""Readiness, and what a store that fails means in each mode."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.integration.gateway.test_chat import eventually

from practicum.errors import StoreError
from practicum.gateway.timing import Timing
from practicum.store import open_store
from practicum.store.store import Store
from practicum.types.calls import ModelCall

HI: list[Any] = [{"role": "user", "content": "Hi"}]


class FullDisk(Store):
    """A store that refuses calls while `full`, and final records unless `finals`."""

    full = True
    finals = True

    def put_call(self, call: ModelCall) -> Future[None]:
        if not self.full and (self.finals or call.status == "open"):
            return super().put_call(call)
        failed: Future[None] = Future()
        failed.set_exception(StoreError("no space left"))
        return failed


@pytest.fixture
def full_disk(tmp_path: Path) -> Any:
    open_store(tmp_path / "full.db").close()
    store = FullDisk(tmp_path / "full.db")
    yield store
    store.close()


def test_ready_says_what_is_served(up: Any) -> None:
    with up.http() as http:
        report = http.get("/readyz").json()
    assert report["status"] == "ready" and report["problems"] == []
    assert report["serving_version"] == report["live_version"] == 0
    assert report["capture"]["lost"] == 0 and report["engine"]["stalled"] is False


def test_in_live_mode_the_user_still_gets_the_answer_and_the_loss_is_alarmed(start: Any, full_disk: Any) -> None:
    up = start(store=full_disk)
    answer = up.openai().chat.completions.create(model="practicum", messages=HI)
    assert answer.choices[0].message.content
    with up.http() as http:
        reply = http.get("/readyz")
    assert reply.status_code == 200 and reply.json()["status"] == "degraded"
    assert reply.json()["capture"]["lost"] == 1 and "no space" not in reply.text
    full_disk.full = False
    up.openai().chat.completions.create(model="practicum", messages=HI)
    assert [call.status for call in up.calls()] == ["complete"]


def test_a_final_record_that_was_lost_does_not_lock_its_idempotency_key(start: Any, full_disk: Any) -> None:
    up = start(store=full_disk, timing=Timing(record_again_s=0.05))
    full_disk.full, full_disk.finals = False, False
    keyed: dict[str, Any] = {"extra_headers": {"Idempotency-Key": "k"}, "model": "practicum", "messages": HI}
    first = up.openai().chat.completions.create(**keyed)
    eventually(lambda: [call.status for call in up.calls()] == ["open"])
    full_disk.finals = True
    with up.http() as http:
        eventually(lambda: http.get("/readyz").json()["status"] == "ready" or None)
    assert up.openai().chat.completions.create(**keyed) == first
    assert [call.status for call in up.calls()] == ["complete"]


def test_in_rollout_mode_the_call_fails(start: Any, full_disk: Any) -> None:
    up = start(store=full_disk, mode="rollout")
    with pytest.raises(openai.InternalServerError) as caught:
        up.openai().chat.completions.create(model="practicum", messages=HI)
    assert caught.value.status_code == 503 and caught.value.code == "store_unavailable"


def test_calls_that_an_earlier_process_left_open_are_interrupted_at_start(start: Any, tmp_path: Path) -> None:
    left = ModelCall(
        call_id="call_left", session_id="s", principal="helpdesk", kind="agent", status="open", created_at=1.0,
        policy_version=0, model="practicum@0", request={},
    )  # fmt: skip
    with open_store(tmp_path / "practicum.db") as store:
        store.put_call(left).result()
    up = start()
    assert up.calls()[0].status == "interrupted"
