"""What a trainer gets of a rollout, and why one takes no part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from practicum.episodes.rows import NO_CALL
from practicum.errors import RequestError
from practicum.harnesses.results import by_group, result
from practicum.types.calls import ModelCall
from practicum.types.outcomes import Outcome
from practicum.types.rollouts import CAUSES, Rollout, Task, Timeouts

CALL = ModelCall(
    call_id="call_1",
    session_id="rollout_1",
    principal="rollout_1",
    kind="agent",
    status="complete",
    created_at=1.0,
    policy_version=3,
    model="m",
    request={},
    episode_id="ep_1",
    prompt_ids=(1, 2),
    completion_ids=(3, 4),
    logprobs=(-0.5, -0.25),
    sampled_logprobs=(-0.5, -0.25),
    versions=(3, 3),
)


def rollout(**given: Any) -> Rollout:
    fields = {
        "rollout_id": "rollout_1",
        "group_id": "group_1",
        "task_id": "t",
        "role": "agent",
        "index": 0,
        "state": "ended",
        "instructions": ("x",),
        "session_id": "rollout_1",
        "cause": "finished",
        "created_at": 1.0,
        "outcomes": (Outcome(name="a", reward=0.5), Outcome(name="b", reward=9.0)),
    }
    return Rollout(**{**fields, **given})


def test_r5_one_reward_and_the_rows_of_its_calls() -> None:
    one = result(rollout(), [CALL])
    assert (one.reward, one.excluded, one.sampled_tokens, one.group) == (0.5, None, 2, ("t", "agent"))
    assert one.rows[0].logprobs == (-0.5, -0.25) and one.rows[0].versions == (3, 3)


def test_l3_l4_the_last_trained_calls_finish_reason_says_whether_it_was_cut_off() -> None:
    """Not its ids, of which several may end a completion; an auxiliary call's reason is nobody's."""
    cut, ended = replace(CALL, finish_reason="length"), replace(CALL, finish_reason="stop")
    after = {"call_id": "call_2", "prompt_ids": (1, 2, 3, 4, 5), "parent_call_id": "call_1"}
    assert result(rollout(), [cut]).truncated and not result(rollout(), [ended]).truncated
    assert not result(rollout(), [cut, replace(ended, **after)]).truncated
    assert result(rollout(), [ended, replace(cut, **after)]).truncated
    title = replace(cut, call_id="call_2", episode_id="ep_2", kind="auxiliary")
    assert not result(rollout(), [ended, title]).truncated


def test_r5_r6_groups_are_by_task_and_role() -> None:
    same_text = [rollout(task_id="t"), rollout(task_id="u"), rollout(task_id="t"), rollout(task_id="t", role="critic")]
    groups = by_group(result(one, [CALL]) for one in same_text)
    assert {key: len(group) for key, group in groups.items()} == {
        ("t", "agent"): 2,
        ("u", "agent"): 1,
        ("t", "critic"): 1,
    }


@pytest.mark.parametrize(
    ("given", "calls", "says"),
    [
        ({"cause": None, "state": "running"}, [CALL], "it has not ended: running"),
        ({"cause": "no_model_call", "error": None}, [], f"no_model_call: {NO_CALL}"),
        ({"cause": "expired"}, [CALL], f"expired: {CAUSES['expired'].text}"),
        ({"cause": "grader_failed", "error": "it hung"}, [CALL], "grader_failed: it hung"),
        ({"outcomes": ()}, [CALL], "no_reward: no grader was asked for"),
        ({}, [], f"no_trainable_token: {NO_CALL} (1)"),
    ],
)
def test_e6_r7_what_takes_no_part_says_why(given: dict[str, Any], calls: list[ModelCall], says: str) -> None:
    one = result(rollout(**given), calls)
    assert one.excluded == says
    assert one.reward is None or not one.rows


def test_only_what_the_policy_could_cause_is_scored_and_none_of_that_is_tried_again() -> None:
    for cause, meaning in CAUSES.items():
        assert meaning.scored == meaning.policy_could_cause, cause
        assert not (meaning.scored and meaning.retried), cause


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_r2_a_reward_that_is_no_number_is_refused(reward: float) -> None:
    with pytest.raises(ValueError, match="no reward"):
        Outcome(name="a", reward=reward)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"task_id": ""}, "task_id"),
        ({"instructions": ()}, "instructions"),
        ({"instructions": ("a", "")}, "instructions"),
        ({"num_samples": 0}, "num_samples"),
        ({"stop_after": 0}, "stop_after"),
        ({"keep_open_s": -1.0}, "keep_open_s"),
    ],
)
def test_a_task_that_makes_no_sense_names_the_field(given: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        Task(**{"task_id": "t", "instructions": ("x",), "harness": "h", **given})
    assert caught.value.param == param


def test_timeouts_are_nested() -> None:
    with pytest.raises(RequestError) as caught:
        Timeouts(agent_s=10.0, prepare_s=1.0, grade_s=1.0, whole_s=5.0)
    assert caught.value.param == "timeouts.agent_s"
