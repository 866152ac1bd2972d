"""Sessions, agents and kinds over the wire, with what harnesses do to their requests."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from practicum.config import GatewayConfig
from practicum.engines.scripted import ScriptedCall, ScriptedSampler, Step, Turn, letters, play
from practicum.episodes.rows import training_rows
from practicum.episodes.settle import settle_kinds
from practicum.gateway import Timing

ASK = [{"role": "user", "content": "Go."}]
TASK = "Write the greeting file."
AGENT = {"type": "function", "function": {"name": "agent", "parameters": {"type": "object", "properties": {
    "prompt": {"type": "string"}}, "required": ["prompt"]}}}  # fmt: skip


def ask(client: httpx.Client, messages: list[dict[str, Any]], prefix: str = "", **more: Any) -> httpx.Response:
    headers = more.pop("headers", {})
    body = {"model": "practicum", "messages": messages, "max_tokens": 2000, **more}
    return client.post(f"{prefix}/v1/chat/completions", json=body, headers=headers)


def said(response: httpx.Response) -> dict[str, Any]:
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    return message


@pytest.mark.parametrize("reasoning", [None, "", "hm, let me see", "something else"])
def test_w9_reasoning_that_was_never_served_goes_on_with_the_episode(up: Any, reasoning: str | None) -> None:
    """No reasoning was served: whatever a harness puts into that field changes no token."""
    with up.http() as client:
        answer = said(ask(client, ASK, prefix="/s/s1"))["content"]
        turn = {"role": "assistant", "content": answer, "reasoning_content": reasoning}
        ask(client, [*ASK, turn, {"role": "user", "content": "And?"}], prefix="/s/s1")
    first, second = up.calls("s1")
    assert second.parent_call_id == first.call_id and second.fork_reason is None
    assert second.prompt_ids[: len(first.prompt_ids + first.completion_ids)] == first.prompt_ids + first.completion_ids


def test_w9_an_answer_whose_text_was_changed_forks(up: Any) -> None:
    with up.http() as client:
        answer = said(ask(client, ASK, prefix="/s/s1"))["content"]
        turn = {"role": "assistant", "content": f"{answer} I think."}
        ask(client, [*ASK, turn, {"role": "user", "content": "And?"}], prefix="/s/s1")
    assert up.calls("s1")[1].fork_reason == "assistant_rewritten"


def test_w22_a_changing_line_in_the_system_text_goes_on_and_the_first_text_stays_served(up: Any) -> None:
    def system(mark: str) -> dict[str, str]:
        return {"role": "system", "content": f"x-anthropic-billing-header: cc_version=1.{mark};\nBe brief."}

    with up.http() as client:
        answer = said(ask(client, [system("aaa"), *ASK], prefix="/s/s1"))
        ask(client, [system("bbb"), *ASK, answer, {"role": "user", "content": "And?"}], prefix="/s/s1")
        changed = {"role": "system", "content": "Be long."}
        ask(client, [changed, *ASK, answer, {"role": "user", "content": "And?"}], prefix="/s/s1")
    first, second, third = up.calls("s1")
    assert second.fork_reason is None and second.parent_call_id == first.call_id
    shown = up.renderer.tokenizer.decode(second.prompt_ids)
    assert "cc_version=1.aaa" in shown and "bbb" not in shown
    assert third.fork_reason == "system_changed"


def delegate_thrice(turn: Turn) -> Step:
    if turn.tools and turn.assistant_turns == 0:
        return Step(tool_calls=[ScriptedCall(name="agent", arguments={"prompt": TASK})] * 3)
    return Step(content="Done.")


@pytest.mark.parametrize("prefix", ["/s/run-1", ""])
def test_e7_the_same_prompt_from_three_sub_agents_is_three_episodes(start: Any, prefix: str) -> None:
    up = start(ScriptedSampler(delegate_thrice))
    with up.http() as client:
        ask(client, ASK, prefix=prefix, tools=[AGENT])
        for _ in range(3):
            answer = said(ask(client, [{"role": "user", "content": TASK}], prefix=prefix))
        ask(client, [{"role": "user", "content": TASK}, answer, {"role": "user", "content": "Go on."}], prefix=prefix)
    calls = up.calls()
    assert len({call.session_id for call in calls}) == 1
    assert [call.kind for call in settle_kinds(calls)] == ["agent"] * 5
    assert len({call.agent_id for call in calls[1:4]}) == 3 and calls[0].agent_id is None
    assert calls[4].agent_id in {call.agent_id for call in calls[1:4]}
    assert len(training_rows(calls).rows) == 4


def test_w10_settings_that_differ_between_calls_go_on_with_the_episode(up: Any) -> None:
    """A seed that is new with each call, a marker that moves with the last message, and what is only kept."""
    messages: list[dict[str, Any]] = ASK
    with up.http() as client:
        for number in range(3):
            *rest, last = messages
            marked = {"type": "text", "text": last["content"], "cache_control": {"type": "ephemeral"}}
            varied = {
                "seed": number,
                "stop": [f"END{number}"],
                "metadata": {"n": str(number)},
                "max_tokens": 100 + number,
            }
            answer = said(ask(client, [*rest, {**last, "content": [marked]}], prefix="/s/s1", **varied))
            messages = [*messages, answer, {"role": "user", "content": "Go on."}]
    calls = up.calls("s1")
    assert [call.fork_reason for call in calls] == ["new_conversation", None, None]
    assert [call.request["seed"] for call in calls] == [0, 1, 2]
    assert len(training_rows(calls).rows) == 1


def test_e7_the_same_prompt_without_a_task_behind_it_is_a_retry(up: Any) -> None:
    with up.http() as client:
        for _ in range(3):
            ask(client, ASK, prefix="/s/s1")
    calls = up.calls("s1")
    assert [(c.kind, c.kind_reason) for c in calls] == [("agent", None), *[("retry", "same_prompt_again")] * 2]


def test_e7_a_title_between_two_attempts_does_not_hide_the_retry(up: Any) -> None:
    opencode = {"user-agent": "opencode/1.18.33", "x-session-id": "ses_1"}
    title = [{"role": "system", "content": "Titles."}, {"role": "user", "content": "For:"}, *ASK]
    with up.http() as client:
        for messages in (ASK, title, ASK):
            ask(client, messages, headers=opencode)
    calls = up.calls("ses_1")
    assert [(c.kind, c.kind_reason) for c in calls] == [
        ("agent", None), ("auxiliary", "opencode_title"), ("retry", "same_prompt_again"),
    ]  # fmt: skip
    assert {c.harness for c in calls} == {"opencode"}


def test_w18_a_failed_call_without_any_header_is_asked_again_in_its_session(start: Any) -> None:
    tries = iter([Step(fail="out of memory"), Step(content="ok")])
    up = start(ScriptedSampler(lambda turn: next(tries)), timing=Timing())
    with up.http() as client:
        assert ask(client, ASK).status_code >= 500
        again = ask(client, ASK)
    failed, answered = up.calls()
    assert failed.session_id == answered.session_id and again.headers["x-practicum-session-source"] == "inferred"
    assert answered.session_source == "inferred:undelivered_prompt"
    made = training_rows([failed, answered])
    assert [row.call_ids for row in made.rows] == [(answered.call_id,)]
    assert "status is failed" in made.refusals[failed.call_id]


def test_w18_what_failed_before_a_restart_is_asked_again_in_its_session(start: Any) -> None:
    before = start(ScriptedSampler(lambda turn: Step(fail="out of memory")))
    with before.http() as client:
        assert ask(client, ASK).status_code >= 500
    before.stop()
    with start().http() as client:
        assert ask(client, ASK).headers["x-practicum-session-source"] == "inferred"
    assert len({call.session_id for call in before.calls()}) == 1 and len(before.calls()) == 2


def test_e9_a_group_of_rollouts_under_one_key_stays_a_group(up: Any) -> None:
    with up.http() as client:
        sessions = [ask(client, ASK).headers["x-practicum-session-id"] for _ in range(4)]
    assert len(set(sessions)) == 4 and {call.kind for call in up.calls()} == {"agent"}


def test_e9_a_key_that_is_bound_to_a_session_needs_no_header(start: Any) -> None:
    from practicum.types.principals import Principal

    held = Principal(key_id="k", name="rollouts", scopes=frozenset({"sample"}), session_id="rollout-7")
    up = start(key_lookup=lambda key: held if key == "rollout-key" else None)
    with up.http("rollout-key") as client:
        shown = ask(client, ASK, headers={"x-session-id": "other"}).headers
    assert (shown["x-practicum-session-id"], shown["x-practicum-session-source"]) == ("rollout-7", "key")


def test_e4_a_compaction_and_the_fresh_context_are_two_more_episodes(start: Any) -> None:
    summary = "The user wants hello.txt with the word hi in it."
    up = start(ScriptedSampler(play([Step(content="One."), Step(content=summary), Step(content="Two.")])))
    codex = {"user-agent": "codex_exec/0.171.0", "session-id": "s1", "thread-id": "s1"}
    compacting = codex | {"x-codex-turn-metadata": '{"request_kind": "compaction"}'}
    with up.http() as client:
        first = said(ask(client, ASK, headers=codex))
        wish = [{"role": "system", "content": "Summarise."}, *ASK, first, {"role": "user", "content": "Sum it up."}]
        ask(client, wish, headers=compacting)
        ask(client, [{"role": "user", "content": f"So far: {summary}"}], headers=codex)
    calls = up.calls("s1")
    assert [(c.kind, c.kind_reason) for c in calls] == [
        ("agent", None), ("compaction", "codex_compaction"), ("agent", None),
    ]  # fmt: skip
    made = training_rows(calls)
    assert len(made.rows) == len(made.episodes) == 3 and not made.refusals


def test_e5_no_limit_of_a_turn_cuts_the_merged_row(start: Any) -> None:
    """Each turn ends at its own limit, the server's or the caller's; the row holds all of every turn."""
    up = start(ScriptedSampler(letters(100)), gateway_config=GatewayConfig(default_max_tokens=8))
    messages: list[dict[str, Any]] = ASK
    with up.http() as client:
        for limit in (None, 8, None, 5):
            answer = said(ask(client, messages, prefix="/s/s1", max_tokens=limit))
            messages = [*messages, answer, {"role": "user", "content": "Go on."}]
    calls = up.calls("s1")
    assert [(len(call.completion_ids), call.finish_reason) for call in calls] == [(8, "length")] * 3 + [(5, "length")]
    (row,) = training_rows(calls).rows
    assert row.trained_tokens == 29 and row.call_ids == tuple(call.call_id for call in calls)
    assert row.completion_ids[-5:] == calls[-1].completion_ids


def test_w12_what_goes_on_from_a_side_call_is_one_too(up: Any) -> None:
    opencode = {"user-agent": "opencode/1.18.33", "x-session-id": "ses_1"}
    title = [{"role": "system", "content": "Titles."}, {"role": "user", "content": "For:"}, *ASK]
    with up.http() as client:
        answer = said(ask(client, title, headers=opencode))
        ask(client, [*title, answer, {"role": "user", "content": "Shorter."}], headers=opencode)
    calls = up.calls("ses_1")
    assert [c.kind_reason for c in calls] == ["opencode_title", "continues_side_call"]
    made = training_rows(calls)
    assert not made.rows and set(made.refusals.values()) == {
        "kind is auxiliary: opencode_title", "kind is auxiliary: continues_side_call",
    }  # fmt: skip
