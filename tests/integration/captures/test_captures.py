"""The recordings of real harnesses: sessions, episodes, kinds and reasons are what a reader wrote down beforehand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from capture_replay import EXPECTED, Replayed, recordings, replay

from practicum.episodes.rows import training_rows
from practicum.episodes.settle import settle_kinds
from practicum.episodes.side_calls import REASONS, RULES
from practicum.types.calls import TRAINABLE_KINDS, ModelCall

RUNS = recordings()
ALL = [pytest.param(recording, run, id=f"{recording}-{run}") for recording, runs in RUNS.items() for run in runs]


def settled_by_session(calls: list[ModelCall]) -> dict[str, list[ModelCall]]:
    sessions: dict[str, list[ModelCall]] = {}
    for call in calls:
        sessions.setdefault(call.session_id, []).append(call)
    return {session: settle_kinds(own) for session, own in sessions.items()}


def assert_statuses(recording: str, run: str, expected: dict[str, Any], played: Replayed) -> None:
    failed = {int(number) for number, fault in expected.get("faults", {}).items() if fault == "refuse"}
    for one in RUNS[recording][run]:
        status = played.statuses.get(one.number)
        if one.method == "GET":
            assert status == 426
        elif one.number in failed:
            assert status is not None and status >= 500
        elif status is not None:
            assert status == 200, (one.number, played.bodies[one.number][:300])


def test_every_run_has_an_expectation() -> None:
    assert {name: set(runs) for name, runs in RUNS.items()} == {name: set(runs) for name, runs in EXPECTED.items()}


@pytest.mark.parametrize(("recording", "run"), ALL)
async def test_a_recording_makes_the_episodes_that_a_reader_sees(recording: str, run: str, tmp_path: Path) -> None:
    """W2, W10, W12, W18, W22, E1 to E4, E7, E9 on real traffic."""
    expected = EXPECTED[recording][run]
    played = await replay(RUNS[recording][run], expected, tmp_path)
    assert_statuses(recording, run, expected, played)
    sessions = settled_by_session(played.calls)
    calls = [call for own in sessions.values() for call in own]
    rows = [training_rows(own) for own in sessions.values()]

    told = [(c.call_id, c.kind, c.kind_reason, c.fork_reason, c.session_source, c.agent_id) for c in calls]
    assert len(sessions) == expected["sessions"], told
    trained = [episode for made in rows for episode in made.episodes if episode.sampled_tokens]
    assert len(trained) == expected["episodes"], told
    kinds = Counter(call.kind for call in calls)
    assert kinds == Counter(expected["kinds"]), told
    named = Counter(call.kind_reason for call in calls if call.kind_reason in {rule.name for rule in RULES})
    assert named == Counter(expected.get("rules", {})), told
    assert len({call.agent_id for call in calls if call.agent_id}) == expected.get("agents", 0), told
    forks = Counter(call.fork_reason for call in calls)
    for reason, count in expected.get("forks", {}).items():
        assert forks[reason] == count, told
    assert_reasons_and_tokens(calls, rows)


def assert_reasons_and_tokens(calls: list[ModelCall], rows: list[Any]) -> None:
    """Whatever does not train says why, and what trains is trained once, as it was sampled."""
    refusals = {call_id: reason for made in rows for call_id, reason in made.refusals.items()}
    for call in calls:
        if call.kind not in TRAINABLE_KINDS or call.status != "complete":
            assert refusals[call.call_id]
        if call.kind != "agent" and call.status == "complete":
            assert call.kind_reason in REASONS
    wanted = sum(len(call.completion_ids) for call in calls if call.untrainable_reason is None)
    assert sum(row.trained_tokens for made in rows for row in made.rows) == wanted


@pytest.mark.parametrize(("run", "number"), [("builtin426", 2), ("subagent", 1)])
async def test_w2_namespaced_and_free_form_calls_leave_as_codex_was_sent_them(
    run: str, number: int, tmp_path: Path
) -> None:
    """The item that the next request repeats is the one that was served; only ids and Codex's own notes differ."""
    expected = EXPECTED["codex"][run]
    played = await replay(RUNS["codex"][run], expected, tmp_path)
    events = [json.loads(line[6:]) for line in played.bodies[number].splitlines() if line.startswith("data: ")]
    served = next(e["item"] for e in events if e["type"] == "response.output_item.done" and "call_id" in e["item"])
    following = json.loads(next(one.body for one in RUNS["codex"][run] if one.number == number + 1))
    recorded = next(item for item in following["input"] if item.get("type") == served["type"])
    varying = {"id", "call_id", "internal_chat_message_metadata_passthrough"}
    assert {k: v for k, v in served.items() if k not in varying} == {
        k: v for k, v in recorded.items() if k not in varying
    }
    assert served["namespace"] and (served["type"] == "custom_tool_call") == ("input" in served)
