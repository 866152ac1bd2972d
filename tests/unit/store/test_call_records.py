"""Model calls through the whole store: lossless, upserted, paged, found by history."""

import dataclasses
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from practicum.store import Store, open_store
from practicum.types.calls import Asked, ModelCall

any_text = st.text(st.characters(exclude_categories=()), max_size=20)
logprobs = st.lists(st.none() | st.floats(), max_size=6).map(tuple)
ids = st.lists(st.integers(0, 2**32 - 1), max_size=6).map(tuple)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_store(tmp_path_factory.mktemp("store") / "practicum.db") as opened:
        yield opened


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "practicum.db") as opened:
        yield opened


def make_call(call_id: str = "call_1", **changes: Any) -> ModelCall:
    values: dict[str, Any] = {
        "call_id": call_id,
        "session_id": "session",
        "principal": "team",
        "kind": "agent",
        "status": "complete",
        "created_at": 100.0,
        "policy_version": 0,
        "model": "practicum",
        "request": {"messages": []},
    }
    return ModelCall(**(values | changes))


def exact(call: ModelCall) -> dict[str, Any]:
    """A call as a dictionary whose floats compare by their bits."""
    values = dataclasses.asdict(call)
    for name in ("logprobs", "sampled_logprobs"):
        values[name] = [None if value is None else struct.pack("<d", value) for value in values[name]]
    return values


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    call=st.builds(
        make_call,
        any_text.filter(bool),
        session_id=any_text,
        principal=any_text,
        model=any_text,
        request=st.dictionaries(any_text, any_text | st.integers() | st.none(), max_size=3),
        text=any_text,
        prompt_ids=ids,
        completion_ids=ids,
        logprobs=logprobs,
        sampled_logprobs=logprobs,
        versions=ids,
        error=st.none() | any_text,
        fork_reason=st.none() | any_text,
        finished_at=st.none() | st.floats(0, 1e12),
        temperature=st.floats(0, 2),
    )
)
def test_g17_bytes_in_are_bytes_out(store: Store, call: ModelCall) -> None:
    store.put_call(call).result()
    found = store.get_call(call.call_id)
    assert found is not None
    assert exact(found) == exact(call)


def test_g17_ten_megabytes(fresh: Store) -> None:
    call = make_call(request={"messages": ["\0\ud800é" * 1_000_000]}, text="x" * 10_000_000)
    fresh.put_call(call).result()
    assert fresh.get_call("call_1") == call


def test_an_open_record_is_finished(fresh: Store) -> None:
    fresh.put_call(make_call(status="open")).result()
    fresh.put_call(make_call(status="complete", text="done", completion_ids=(1,))).result()
    assert fresh.get_call("call_1") == make_call(status="complete", text="done", completion_ids=(1,))
    assert fresh.count_calls() == 1


@pytest.mark.parametrize("final", ["complete", "aborted", "failed"])
@pytest.mark.parametrize("late", ["open", "interrupted"])
def test_a_final_status_is_never_downgraded(fresh: Store, final: str, late: str) -> None:
    fresh.put_call(make_call(status=final)).result()
    fresh.put_call(make_call(status=late)).result()
    found = fresh.get_call("call_1")
    assert found is not None
    assert found.status == final


def test_open_calls_of_an_earlier_process_become_interrupted_and_untrainable(fresh: Store) -> None:
    fresh.put_call(make_call("old", status="open", created_at=1.0)).result()
    fresh.put_call(make_call("new", status="open", created_at=9.0)).result()
    fresh.put_call(make_call("done", created_at=1.0)).result()
    assert fresh.interrupt_open_calls(5.0).result() == 1
    found = fresh.get_call("old")
    assert found is not None
    assert found.status == "interrupted"
    assert found.untrainable_reason is not None
    assert [call.call_id for call in fresh.calls(status="open")] == ["new"]


def test_pages_follow_arrival_and_not_the_clock(fresh: Store) -> None:
    for number, created_at in enumerate([50.0, 10.0, 70.0, 30.0]):
        fresh.put_call(make_call(f"c{number}", created_at=created_at)).result()
    first = fresh.calls(limit=2)
    second = fresh.calls(limit=2, after=first[-1].call_id)
    assert [call.call_id for call in first + second] == ["c0", "c1", "c2", "c3"]
    assert fresh.calls(after="c3") == []
    assert [call.call_id for call in fresh.calls(newest_first=True, after="c2")] == ["c1", "c0"]
    assert [call.call_id for call in fresh.calls(since=40.0)] == ["c0", "c2"]


def test_calls_by_session_and_episode(fresh: Store) -> None:
    fresh.put_call(make_call("a", session_id="s\ud800", episode_id="e1")).result()
    fresh.put_call(make_call("b", session_id="other", episode_id="e1")).result()
    assert [call.call_id for call in fresh.calls(session_id="s\ud800")] == ["a"]
    assert [call.call_id for call in fresh.calls(episode_id="e1")] == ["a", "b"]
    last = fresh.last_call("s\ud800")
    assert last is not None
    assert last.call_id == "a"
    assert fresh.last_call("none") is None


def test_history_is_found_newest_first_for_its_own_principal_only(fresh: Store) -> None:
    fresh.put_call(make_call("a", history_hash="h")).result()
    fresh.put_call(make_call("b", history_hash="h")).result()
    fresh.put_call(make_call("c", history_hash="h", principal="another")).result()
    fresh.put_call(make_call("d")).result()
    assert [call.call_id for call in fresh.find_by_history("team", "h")] == ["b", "a"]
    assert fresh.find_by_history("team", "") == []
    fresh.put_call(make_call("e", history_hash="h", session_id="other")).result()
    assert [call.call_id for call in fresh.find_by_history("team", "h", "session", 2)] == ["b", "a"]


def test_who_asked_a_prompt_last_is_found_in_all_sessions_or_in_one(fresh: Store) -> None:
    fresh.put_call(make_call("a", prompt_hash="p", agent_id="helper", status="failed")).result()
    fresh.put_call(make_call("b", prompt_hash="p", session_id="other")).result()
    fresh.put_call(make_call("c", prompt_hash="p", principal="another")).result()
    assert fresh.last_asked("team", "p") == Asked(session_id="other", agent_id=None, status="complete")
    assert fresh.last_asked("team", "p", "session") == Asked(session_id="session", agent_id="helper", status="failed")
    assert fresh.undelivered() == [("team", "p")] and fresh.undelivered(newest=1) == []
    assert fresh.last_asked("team", "p", "none") is fresh.last_asked("team", "") is None


def test_an_id_out_of_range_is_refused_and_nothing_is_kept(fresh: Store) -> None:
    with pytest.raises(OverflowError):
        fresh.put_call(make_call(prompt_ids=(-1,))).result()
    assert fresh.count_calls() == 0
