"""Advantages and weights against hand-computed numbers.

Pins: R1, R3, R5, R6, R9, R10, R11, L8, L9 of the reward and loss cases.
"""

import math

import pytest

from practicum.algorithms.grpo import Graded, advantages, batch, grouped
from practicum.types.episodes import TrainingRow


def row(name: str, mask: tuple[bool, ...] = (True, True), *, temperature: float = 1.0) -> TrainingRow:
    return TrainingRow(
        row_id=name,
        episode_id=name,
        session_id=name,
        prompt_ids=(1, 2),
        completion_ids=tuple(range(3, 3 + len(mask))),
        mask=mask,
        logprobs=tuple(-0.5 if own else None for own in mask),
        versions=tuple(4 if own else None for own in mask),
        temperature=temperature,
        call_ids=(name,),
    )


def rollout(name: str, reward: float | None, group: object = "task", rows: tuple[TrainingRow, ...] | None = None,
            cause: str = "") -> Graded:  # fmt: skip
    return Graded(rollout_id=name, group=str(group), reward=reward, rows=(row(name),) if rows is None else rows,
                  cause=cause)  # fmt: skip


def test_r3_a_missing_reward_is_left_out_of_the_baseline_and_is_no_zero() -> None:
    assert advantages([1.0, math.nan, 3.0]) == [-1.0, None, 1.0]
    assert advantages([1.0, None, 3.0]) == [-1.0, None, 1.0]


def test_r1_r11_a_group_of_one_has_no_signal() -> None:
    assert advantages([0.7]) == [None]
    assert advantages([0.7, None]) == [None, None]
    assert advantages([]) == []


def test_r10_equal_rewards_have_no_signal_whatever_rounding_says() -> None:
    assert advantages([0.1, 0.1, 0.1]) == [None] * 3
    assert advantages([1e-9, 0.0]) == [0.5e-9, -0.5e-9]


def test_r5_r6_groups_are_formed_by_id_and_not_by_what_was_asked() -> None:
    made = grouped([rollout("a", 1.0, 1), rollout("b", 0.0, 1), rollout("c", 0.0, 2), rollout("d", 0.0, 2)])
    assert made.advantages == {"a": 0.5, "b": -0.5}
    assert made.left_out == {"its group has no signal": 2}


def test_l9_rows_of_one_rollout_share_its_advantage_and_weigh_by_their_tokens() -> None:
    three = (row("a1", (True,)), row("a2", (True, False, True)), row("a3", (False, True)))
    made = batch([rollout("a", 1.0, rows=three), rollout("b", 0.0)])
    (stream,) = made.streams
    rows = {each.row_id: each for each in stream.rows}
    assert [sum(rows[name].weights) * 6 for name in ("a1", "a2", "a3", "b")] == pytest.approx([1, 2, 1, 2])
    assert {rows[name].advantages[0] for name in ("a1", "a2", "a3") if rows[name].advantages} == {0.5}
    assert made.facts["rows"] == 4 and made.facts["reward"] == 0.5


def test_l8_what_the_policy_did_not_sample_has_no_weight_and_no_logprob() -> None:
    (stream,) = batch([rollout("a", 1.0, rows=(row("a", (True, False, True)),)), rollout("b", 0.0)]).streams
    own = next(each for each in stream.rows if each.row_id == "a")
    assert own.weights == (0.25, 0.0, 0.25) and own.logprobs == (-0.5, None, -0.5)


def test_r9_dead_groups_stay_only_where_asked_and_a_dead_batch_is_no_signal() -> None:
    dead = [rollout("a", 1.0), rollout("b", 1.0)]
    assert not batch(dead).streams[0].rows
    (stream,) = batch(dead, anchor_dead_groups=True).streams
    assert stream.anchor and [each.advantages for each in stream.rows] == [(0.0, 0.0)] * 2


def test_e6_a_rollout_without_a_sampled_token_is_in_no_baseline_and_its_reason_is_counted() -> None:
    silent = rollout("s", 0.0, rows=(), cause="no model call was seen")
    made = batch([rollout("a", 1.0), rollout("b", 0.5), silent])
    assert made.facts["left_out/no model call was seen"] == 1
    assert {each.row_id: each.advantages for each in made.streams[0].rows} == {"a": (0.25,) * 2, "b": (-0.25,) * 2}
