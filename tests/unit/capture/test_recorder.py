"""What the recorder does when the store works, fails, and hangs."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace

import pytest

from practicum.capture.recorder import MOST_KEPT, Mode, Recorder
from practicum.errors import StoreError
from practicum.types.calls import ModelCall
from practicum.types.tokens import TokenChunk


class Shelf:
    """A store that keeps, fails, or hangs, as `does` says."""

    def __init__(self, does: str = "keep") -> None:
        self.does = does
        self.kept: list[ModelCall] = []

    def put_call(self, call: ModelCall) -> Future[None]:
        done: Future[None] = Future()
        if self.does == "keep":
            self.kept.append(call)
            done.set_result(None)
        elif self.does == "fail":
            done.set_exception(StoreError("the disk is full"))
        return done


CALL = ModelCall(
    call_id="c", session_id="s", principal="p", kind="agent", status="open", created_at=0.0, policy_version=2,
    model="m", request={}, prompt_ids=(1,),
)  # fmt: skip
CHUNK = TokenChunk(ids=(5, 6), logprobs=(-0.5, None), sampled_logprobs=(-0.4, None), version=2)


def recorder(shelf: Shelf, mode: Mode = "live") -> Recorder:
    return Recorder(shelf, mode, timeout_s=0.02, clock=lambda: 9.0)


async def test_a_call_is_opened_and_finished() -> None:
    shelf = Shelf()
    recording = await recorder(shelf).begin(CALL)
    recording.add(CHUNK)
    recording.add(TokenChunk(ids=(7,), logprobs=(-1.0,), sampled_logprobs=(-1.0,), version=3, finish_reason="stop"))
    final = await recording.complete(text="hi", finish_reason="stop", history_hash="h")
    assert [one.status for one in shelf.kept] == ["open", "complete"]
    assert shelf.kept[1] == final
    assert final.completion_ids == (5, 6, 7) and final.logprobs == (-0.5, None, -1.0)
    assert final.versions == (2, 2, 3) and final.finished_at == 9.0


async def test_an_answer_that_is_whole_before_it_leaves_has_one_record() -> None:
    shelf = Shelf()
    one = recorder(shelf)
    recording = one.recording(CALL)
    recording.add(CHUNK)
    await recording.complete(text="hi", finish_reason="stop", history_hash="h")
    recording.begin()
    await recording.opened()  # before the body leaves
    assert [kept.status for kept in shelf.kept] == ["complete"]
    assert (one.health().opened, one.health().finished, one.health().unopened) == (1, 1, 0)


async def test_an_aborted_call_keeps_its_tokens_and_its_history_cannot_be_extended() -> None:
    shelf = Shelf()
    recording = await recorder(shelf).begin(CALL)
    recording.add(CHUNK)
    final = await recording.abandon("aborted", text="h", error="the caller disconnected")
    assert (final.status, final.kind, final.finish_reason) == ("aborted", "aborted", "aborted")
    assert final.completion_ids == (5, 6) and final.history_hash == ""


@pytest.mark.parametrize("does", ["fail", "hang"])
async def test_in_live_mode_a_loss_is_counted_and_the_answer_goes_on(does: str) -> None:
    one = recorder(Shelf(does))
    recording = await one.begin(CALL)
    await recording.complete(text="", finish_reason="stop", history_hash="")
    health = one.health()
    assert (health.unopened, health.lost, health.finished) == (1, 1, 0)
    assert health.last_error


@pytest.mark.parametrize("does", ["fail", "hang"])
async def test_in_rollout_mode_the_call_fails(does: str) -> None:
    shelf = Shelf(does)
    with pytest.raises(StoreError, match="could not be recorded"):
        await recorder(shelf, "rollout").begin(CALL)
    shelf.does = "keep"
    one = recorder(shelf, "rollout")
    recording = await one.begin(CALL)
    shelf.does = does
    with pytest.raises(StoreError):
        await recording.complete(text="", finish_reason="stop", history_hash="")
    assert one.health().lost == 1


async def test_a_store_that_recovers_gets_the_final_record() -> None:
    shelf = Shelf("fail")
    one = recorder(shelf)
    recording = await one.begin(CALL)
    shelf.does = "keep"
    await recording.complete(text="", finish_reason="stop", history_hash="")
    assert one.health().lost == 0 and shelf.kept[0].status == "complete"


async def recovered(one: Recorder, count: int) -> None:
    async with asyncio.timeout(10):
        while one.health().recovered < count:  # noqa: ASYNC110  # nobody is told
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("mode", "status"), [("live", "complete"), ("rollout", "interrupted")])
async def test_a_lost_final_record_is_written_again_until_it_is_durable(mode: Mode, status: str) -> None:
    shelf = Shelf()
    one = Recorder(shelf, mode, timeout_s=0.02, again_s=0.01)
    recording = await one.begin(CALL)
    recording.add(CHUNK)
    shelf.does = "fail"
    with nullcontext() if mode == "live" else pytest.raises(StoreError):
        await recording.complete(text="hi", finish_reason="stop", history_hash="h")
    await asyncio.sleep(0.05)
    assert (one.health().lost, one.health().recovered, len(shelf.kept)) == (1, 0, 1)
    shelf.does = "keep"
    await recovered(one, 1)
    assert [(call.status, call.completion_ids) for call in shelf.kept] == [("open", ()), (status, (5, 6))]
    assert one.health().lost == 1, "it was alarmed, and stays counted"


async def test_of_very_many_lost_records_the_newest_are_written_again() -> None:
    shelf = Shelf("fail")
    one = Recorder(shelf, timeout_s=0.02, again_s=0.01)
    for number in range(MOST_KEPT + 3):
        await one.finish(replace(CALL, call_id=str(number), status="complete"), "live")
    shelf.does = "keep"
    await recovered(one, MOST_KEPT)
    assert [call.call_id for call in shelf.kept] == [str(number) for number in range(3, MOST_KEPT + 3)]


async def test_a_lost_record_does_not_come_back_over_a_later_one_of_the_same_call() -> None:
    shelf = Shelf("fail")
    one = Recorder(shelf, timeout_s=0.02, again_s=0.05)
    await one.finish(replace(CALL, status="complete", text="first"), "live")
    shelf.does = "keep"
    again = await one.begin(CALL)
    await again.complete(text="second", finish_reason="stop", history_hash="")
    await asyncio.sleep(0.1)
    assert [call.text for call in shelf.kept] == ["", "second"] and one.health().recovered == 0
