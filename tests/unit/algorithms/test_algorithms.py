"""Each algorithm's own formula and settings against hand-computed numbers, and the table they are chosen from."""

import math
import sys
from dataclasses import replace

import pytest
from graded_rollouts import advantages, rollout, row

from practicum.algorithms.group import Graded
from practicum.algorithms.sdpo import Told
from practicum.algorithms.table import ALGORITHMS, DEFAULT, algorithm
from practicum.engines.embedded.settings import DistillSettings
from practicum.errors import UsageError
from practicum.types.training import PolicyGradient


def settings(name: str, **options: object) -> PolicyGradient:
    made = algorithm(name, options).batch([rollout("a", 1.0), rollout("b", 0.0)])
    return made.streams[0].policy_gradient


def test_dppo_is_the_default_and_what_a_policy_gradient_is_by_itself() -> None:
    assert DEFAULT == "dppo" and settings("dppo") == PolicyGradient()
    assert advantages([1.0, 0.0, 0.0, 0.0]) == [0.75, -0.25, -0.25, -0.25]


def test_grpo_divides_by_the_groups_deviation() -> None:
    # Deviation of 1, 0, 0, 0 with n - 1: sqrt(.75 / 3) = .5.
    assert advantages([1.0, 0.0, 0.0, 0.0], "grpo") == pytest.approx([0.75 / 0.5001, *[-0.25 / 0.5001] * 3])
    found = settings("grpo")
    assert (found.surrogate, found.clip_low, found.clip_high, found.kl_kind) == ("clip", 0.2, 0.2, "k3")
    assert found.trust_above is None and found.trust_below is None


def test_the_batchs_deviation_is_that_of_all_its_rewards() -> None:
    rollouts = [rollout("a", 1.0, 1), rollout("b", 0.0, 1), rollout("c", 3.0, 2), rollout("d", 0.0, 2)]
    made = algorithm("cispo", {"scale": "batch"}).batch(rollouts)
    std = math.sqrt((0 + 1 + 4 + 1) / 3) + 1e-4
    found = {each.row_id: each.advantages[0] for each in made.streams[0].rows if each.advantages}
    assert found == pytest.approx({"a": 0.5 / std, "b": -0.5 / std, "c": 1.5 / std, "d": -1.5 / std})


def test_dr_grpo_divides_by_no_deviation_and_by_one_length() -> None:
    assert advantages([1.0, 0.0, 0.0, 0.0], "dr_grpo", max_length=10) == [0.75, -0.25, -0.25, -0.25]
    with pytest.raises(UsageError, match="needs max_length"):
        algorithm("dr_grpo")


def test_h8_rloo_is_the_mean_of_the_others() -> None:
    rewards = [1.0, 0.0, 4.0]
    assert advantages(list(rewards), "rloo") == pytest.approx([1 - 2.0, 0 - 2.5, 4 - 0.5])
    mean = sum(rewards) / 3
    assert advantages(list(rewards), "rloo") == pytest.approx([3 / 2 * (value - mean) for value in rewards])


def test_maxrl_weighs_a_success_by_its_rarity() -> None:
    assert advantages([1.0, 0.0, 0.0, 0.0], "maxrl") == [3.0, -1.0, -1.0, -1.0]
    assert advantages([1.0, 1.0, 1.0, 0.0], "maxrl") == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1.0])
    assert advantages([0.0, -1.0], "maxrl") == [None, None], "no signal where the mean is not above 0"


def test_gspo_and_cispo_have_their_ratios() -> None:
    found = settings("gspo")
    assert (found.ratio, found.surrogate, found.clip_low, found.clip_high) == ("sequence", "clip", 3e-4, 4e-4)
    found = settings("cispo")
    assert (found.surrogate, found.cap, found.trust_above, found.ratio) == ("detached", 5.0, None, "token")


def long(name: str, reward: float, tokens: int, *, truncated: bool = False) -> Graded:
    return replace(rollout(name, reward, rows=(row(name, (True,) * tokens),)), truncated=truncated)


def test_dapo_has_its_four_parts() -> None:
    dapo = algorithm("dapo", {"overlong_length": 10, "overlong_buffer": 4})
    assert dapo.resamples and not algorithm("grpo").resamples
    rollouts = [
        long("right", 1.0, 6),
        long("near", 1.0, 8),
        long("wrong", 0.0, 10),
        long("cut", 0.0, 10, truncated=True),
    ]
    made = dapo.batch(rollouts)
    (stream,) = made.streams
    assert (stream.policy_gradient.clip_low, stream.policy_gradient.clip_high) == (0.2, 0.28)
    # Shaped rewards 1, 1 - 2/4, 0 - 1; the one that was cut off is out; every token weighs 1/24.
    shaped = [1.0, 0.5, -1.0]
    mean = sum(shaped) / 3
    std = math.sqrt(sum((value - mean) ** 2 for value in shaped) / 2) + 1e-4
    found = {each.row_id: (each.advantages or (0.0,))[0] for each in stream.rows}
    assert found == pytest.approx(
        dict(zip(("right", "near", "wrong"), [(v - mean) / std for v in shaped], strict=True))
    )
    assert {value for each in stream.rows for value in each.weights} == {1 / 24}
    assert made.facts["left_out/cut off at the token limit"] == 1 and made.facts["reward"] == 0.5


def test_dapo_judges_a_groups_signal_before_the_punishment() -> None:
    dapo = algorithm("dapo", {"overlong_length": 10, "overlong_buffer": 4})
    alike = [long("short", 1.0, 2), long("long", 1.0, 9)]
    assert not dapo.signal(alike) and not dapo.batch(alike).streams[0].rows
    for options in ({"overlong_length": 10}, {"overlong_length": 3, "overlong_buffer": 4}):
        with pytest.raises(UsageError, match="belong together"):
            algorithm("dapo", options)


def test_corrections_reach_the_loss_and_say_what_they_need() -> None:
    given = {"against": "proximal", "tis_cap": 2.0, "veto": 1e-4, "geometric": [0.99, 1.01], "kl_coef": 0.1}
    for name in ("dppo", "grpo", "rloo", "dapo", "gspo", "cispo", "maxrl"):
        made = algorithm(name, given)
        assert made.needs_proximal and made.needs_reference
        found = settings(name, **given)
        assert (found.tis_cap, found.veto, found.geometric) == (2.0, 1e-4, (0.99, 1.01))
    assert not algorithm("grpo").needs_proximal and not algorithm("grpo").needs_reference


def test_sft_clones_what_succeeded() -> None:
    rollouts = [long("a", 1.0, 3), long("b", 0.4, 2), long("c", 0.5, 1), long("d", 1.0, 5, truncated=True)]
    made = algorithm("sft").batch(rollouts)
    (stream,) = made.streams
    assert stream.loss == "cross_entropy"
    assert {each.row_id: each.weights for each in stream.rows} == {"a": (0.25,) * 3, "c": (0.25,)}
    assert made.facts["left_out/its reward is below 0.5"] == 1 and algorithm("sft").signal(rollouts) == {"task"}
    assert not algorithm("sft", {"threshold": 2.0}).batch(rollouts).streams[0].rows


def test_distillation_needs_no_reward_and_keeps_the_prompt() -> None:
    made = algorithm("distillation", {"top_k": 20})
    (stream,) = made.batch([long("a", math.nan, 3), replace(long("b", 0.0, 1), reward=None)]).streams
    assert stream.loss == "distill" and all(each.teacher_prompt_ids == each.prompt_ids for each in stream.rows)
    assert {value for each in stream.rows for value in each.weights} == {0.25}
    assert made.distill is not None
    assert DistillSettings(**made.distill) == DistillSettings(top_k=20)
    taught = algorithm("sdpo", teacher_prompt=told_ids).distill
    assert taught is not None and DistillSettings(**taught) == DistillSettings(divergence="jsd", top_k=100)


def told_ids(told: Told) -> tuple[int, ...]:
    """A teacher's prompt in which one can read what was told."""
    solution = () if told.solution is None else (100 + int(told.solution.rollout_id),)
    return (*told.row.prompt_ids, *solution, *((200,) if told.feedback else ()))


def sdpo_prompts(rollouts: list[Graded], **options: object) -> dict[str, tuple[int, ...] | None]:
    made = algorithm("sdpo", options, teacher_prompt=told_ids).batch(rollouts)
    return {each.row_id: each.teacher_prompt_ids for each in made.streams[0].rows}


def test_sdpo_tells_a_sibling_that_succeeded_and_never_the_rollout_itself() -> None:
    rollouts = [rollout("0", 0.0), rollout("1", 1.0), rollout("2", 0.5), rollout("3", 1.0, "other task")]
    assert sdpo_prompts(rollouts) == {"0": (1, 2, 101), "1": (1, 2, 102), "2": (1, 2, 101)}


def test_h9_a_lone_success_is_taught_nothing() -> None:
    rollouts = [rollout("0", 0.0), rollout("1", 1.0)]
    made = algorithm("sdpo", teacher_prompt=told_ids).batch(rollouts)
    (stream,) = made.streams
    assert [each.row_id for each in stream.rows] == ["0"] and stream.rows[0].weights == (0.5, 0.5)
    (reason,) = [name for name in made.facts if name.startswith("left_out/")]
    assert "no other success" in reason and made.facts["with_signal"] == 1


def test_sdpo_tells_feedback_where_there_is_no_solution_or_always() -> None:
    failed = [replace(rollout(name, 0.0), feedback="IndexError") for name in ("0", "1")]
    assert sdpo_prompts(failed) == {"0": (1, 2, 200), "1": (1, 2, 200)}
    mixed = [*failed, rollout("2", 1.0)]
    assert sdpo_prompts(mixed) == {"0": (1, 2, 102), "1": (1, 2, 102)}
    assert sdpo_prompts(mixed, feedback="always") == {"0": (1, 2, 102, 200), "1": (1, 2, 102, 200)}
    assert sdpo_prompts(failed, feedback="never") == {}
    made = algorithm("sdpo", teacher_prompt=lambda told: None).batch(failed)
    assert made.facts["left_out/its teacher's prompt could not be made"] == 2 and not made.streams[0].rows
    with pytest.raises(UsageError, match="renders the teacher's prompt"):
        algorithm("sdpo")


def test_what_there_is_not_is_named_with_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"no algorithm 'ppo'.*cispo, dapo, distillation, dppo, dr_grpo"):
        algorithm("ppo")
    with pytest.raises(UsageError, match=r"grpo has no option 'epsilon'.*clip_high, clip_low"):
        algorithm("grpo", {"epsilon": 0.2})
    with pytest.raises(UsageError, match=r"option 'clip_low' of grpo.*number"):
        algorithm("grpo", {"clip_low": "0.2"})
    with pytest.raises(UsageError, match="grpo: tis_cap corrects pi_old/mu"):
        algorithm("grpo", {"tis_cap": 2.0})
    with pytest.raises(UsageError, match=r"kl_kind.*of grpo"):
        algorithm("grpo", {"kl_kind": "k1"})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_says_its_formula_its_paper_and_its_deviations(name: str) -> None:
    said = sys.modules[ALGORITHMS[name].__module__].__doc__ or ""
    assert ALGORITHMS[name].name == name
    assert "arXiv" in said and "Deviation" in said and ("L   =" in said or "L =" in said or "A_i" in said)
