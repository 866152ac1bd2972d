"""Groups and weights against hand-computed numbers, whatever the algorithm.

Pins: R1, R3 to R6, R9 to R11, L2 to L4, L8, L9, E6 of the reward, loss and episode cases.
"""

import math
from dataclasses import replace

import pytest
from graded_rollouts import advantages, rollout, row

from practicum.algorithms.dppo import Dppo, DppoOptions
from practicum.algorithms.group import Graded
from practicum.algorithms.table import ALGORITHMS, algorithm


def dppo(**options: object) -> Dppo:
    return Dppo(DppoOptions(**options))  # type: ignore[arg-type]


def weights(rollouts: list[Graded], name: str = "dppo", **options: object) -> dict[str, tuple[float, ...]]:
    return {each.row_id: each.weights for each in algorithm(name, options).batch(rollouts).streams[0].rows}


def test_r3_a_missing_reward_is_left_out_of_the_baseline_and_is_no_zero() -> None:
    assert advantages([1.0, math.nan, 3.0]) == [-1.0, None, 1.0]
    assert advantages([1.0, None, 3.0]) == [-1.0, None, 1.0]
    # H8: nor is it in n of the leave-one-out baseline.
    assert advantages([1.0, None, 3.0], "rloo") == [-2.0, None, 2.0]


@pytest.mark.parametrize("name", ["dppo", "grpo", "rloo", "dapo", "gspo", "cispo", "maxrl"])
def test_r1_r11_a_group_of_one_has_no_signal(name: str) -> None:
    assert advantages([0.7], name) == [None]
    assert advantages([0.7, None], name) == [None, None]
    assert advantages([], name) == []


@pytest.mark.parametrize("name", ["dppo", "grpo", "rloo", "dapo", "gspo", "cispo", "maxrl"])
def test_r10_equal_rewards_have_no_signal_whatever_rounding_says(name: str) -> None:
    assert advantages([0.1, 0.1, 0.1], name) == [None] * 3
    assert all(advantages([1e-9, 0.0], name))


def test_r10_the_spread_is_each_groups_own() -> None:
    two = [rollout("a", 1.0, 1), rollout("b", 1.0, 1), rollout("c", 0.0, 2), rollout("d", 0.0, 2)]
    assert not dppo().signal(two) and not dppo(scale="batch").batch(two).streams[0].rows


def test_r4_what_is_masked_is_out_before_the_statistics() -> None:
    cut = replace(rollout("c", 4.0), truncated=True)
    rollouts = [rollout("a", 1.0), rollout("b", 0.0), cut]
    made = dppo(mask_truncated=True).batch(rollouts)
    assert {each.row_id: each.advantages for each in made.streams[0].rows} == {"a": (0.5,) * 2, "b": (-0.5,) * 2}
    assert made.facts["left_out/cut off at the token limit"] == 1
    # Unmasked, it has a say and a row.
    assert len(dppo().batch(rollouts).streams[0].rows) == 3


@pytest.mark.parametrize("aggregation", ["grpo", "dr_grpo", "dapo", "bnpo"])
def test_l2_what_is_masked_is_in_no_denominator(aggregation: str) -> None:
    options = {"aggregation": aggregation, "max_length": 8, "mask_truncated": True}
    kept = [rollout("a", 1.0), rollout("b", 0.0)]
    cut = replace(rollout("c", 4.0, rows=(row("c", (True,) * 7),)), truncated=True)
    assert weights(kept, "grpo", **options) == weights([*kept, cut], "grpo", **options)
    nothing = [replace(each, truncated=True) for each in kept]
    assert weights(nothing, "grpo", **options) == {}


def test_r5_r6_groups_are_formed_by_id_and_not_by_what_was_asked() -> None:
    rollouts = [rollout("a", 1.0, 1), rollout("b", 0.0, 1), rollout("c", 0.0, 2), rollout("d", 0.0, 2)]
    made = dppo().groups(rollouts)
    assert made.advantages == {"a": 0.5, "b": -0.5}
    assert made.left_out == {"its group has no signal": 2}
    assert dppo().signal(rollouts) == {"1"} and dppo().batch(rollouts).facts["groups_with_signal"] == 1


def test_l9_rows_of_one_rollout_share_its_advantage_and_weigh_by_their_tokens() -> None:
    made = dppo().batch(MANY_ROWS)
    (stream,) = made.streams
    rows = {each.row_id: each for each in stream.rows}
    assert [sum(rows[name].weights) * 6 for name in ("a1", "a2", "a3", "b")] == pytest.approx([1, 2, 1, 2])
    assert {rows[name].advantages[0] for name in ("a1", "a2", "a3") if rows[name].advantages} == {0.5}
    assert made.facts["rows"] == 4 and made.facts["reward"] == 0.5


MANY_ROWS = [
    rollout("a", 1.0, rows=(row("a1", (True,)), row("a2", (True, True)), row("a3", (False, True)))),
    rollout("b", 0.0),
]


def test_l9_a_rollout_of_many_rows_weighs_as_one_in_the_mean_over_rollouts() -> None:
    found = weights(MANY_ROWS, "grpo")
    assert found["a2"] == (0.125, 0.125) and found["a3"] == (0.0, 0.125) and found["b"] == (0.25, 0.25)


def test_aggregations_by_hand() -> None:
    rollouts = [rollout("a", 1.0, rows=(row("a", (True,)),)), rollout("b", 0.0, rows=(row("b", (True,) * 3),))]
    assert weights(rollouts, "grpo") == {"a": (1 / 2,), "b": (1 / 6,) * 3}
    assert weights(rollouts, "dr_grpo", max_length=10) == {"a": (1 / 20,), "b": (1 / 20,) * 3}
    for name in ("dppo", "dapo", "cispo", "rloo", "maxrl"):
        assert weights(rollouts, name) == {"a": (1 / 4,), "b": (1 / 4,) * 3}
    assert weights(rollouts, "grpo", aggregation="bnpo") == {"a": (1 / 4,), "b": (1 / 4,) * 3}


def test_l8_what_the_policy_did_not_sample_has_no_weight_and_no_logprob() -> None:
    (stream,) = dppo().batch([rollout("a", 1.0, rows=(row("a", (True, False, True)),)), rollout("b", 0.0)]).streams
    own = next(each for each in stream.rows if each.row_id == "a")
    assert own.weights == (0.25, 0.0, 0.25) and own.logprobs == (-0.5, None, -0.5)


def test_r9_dead_groups_stay_only_where_asked_and_a_dead_batch_is_no_signal() -> None:
    dead = [rollout("a", 1.0), rollout("b", 1.0)]
    assert not dppo().batch(dead).streams[0].rows
    assert dppo().batch(dead).facts["left_out/its group has no signal"] == 2
    kept = dppo(anchor_dead_groups=True, kl_coef=0.1).batch(dead)
    assert "left_out/its group has no signal" not in kept.facts
    (stream,) = kept.streams
    assert stream.anchor and [each.advantages for each in stream.rows] == [(0.0, 0.0)] * 2
    assert stream.policy_gradient.kl_coef == 0.1


def test_e6_a_rollout_without_a_sampled_token_is_in_no_baseline_and_its_reason_is_counted() -> None:
    silent = rollout("s", 0.0, rows=(), cause="no model call was seen")
    for name in set(ALGORITHMS) - {"dr_grpo", "sdpo"}:
        made = algorithm(name).batch([rollout("a", 1.0), rollout("b", 0.5), silent])
        assert made.facts["left_out/no model call was seen"] == 1
    made = dppo().batch([rollout("a", 1.0), rollout("b", 0.5), silent])
    assert {each.row_id: each.advantages for each in made.streams[0].rows} == {"a": (0.25,) * 2, "b": (-0.25,) * 2}


def test_whether_the_rows_are_on_policy_is_for_the_caller_to_say() -> None:
    rollouts = [rollout("a", 1.0), rollout("b", 0.0)]
    assert not dppo().batch(rollouts).on_policy and dppo().batch(rollouts, on_policy=True).on_policy
