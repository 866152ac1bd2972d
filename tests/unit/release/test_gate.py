"""The gate refuses a candidate that changed nothing, one that was ruined, one measured on too little, and says why."""

from dataclasses import replace

from practicum.config import GateConfig
from practicum.evals.guards import ChoiceResult, Divergence
from practicum.evals.heldout import Graded
from practicum.release.gate import Answers, Evidence, checks, decide

N = 24


def answers(text: str, follows: list[float]) -> tuple[Graded, ...]:
    return tuple(
        Graded(
            case_id=f"c{n}",
            cluster=f"s{n}",
            question="?",
            text=text,
            ids=(1,),
            finish_reason="stop",
            verdicts={"rule": value},
        )
        for n, value in enumerate(follows)
    )


def evidence(
    new: list[float],
    old: list[float],
    *,
    text: str = "It will be with you on Friday.",
    right: float = 0.7,
    topic: float = 1.0,
    kl: float = 0.01,
) -> Evidence:
    items = 100
    return Evidence(
        target_name="rule",
        target_new=tuple(new),
        target_old=tuple(old),
        target_clusters=tuple(f"s{n}" for n in range(len(new))),
        regression_new=ChoiceResult(probability=(right,) * items, correct=(1.0,) * items),
        regression_old=ChoiceResult(probability=(0.7,) * items, correct=(1.0,) * items),
        divergence=Divergence(per_prompt=(kl,) * 8, tokens=100),
        answers=Answers(
            clusters=tuple(f"s{n}" for n in range(len(new))),
            new=answers(text, new),
            old=answers("It will be with you on Friday or a day later.", old),
            on_topic_new=(topic,) * len(new),
            on_topic_old=(1.0,) * len(new),
        ),
    )


def verdict(found: Evidence) -> tuple[str, str]:
    decision = decide(checks(found, GateConfig()), version=2, live=1, actor="gate")
    return decision.verdict, decision.reason


BETTER = [1.0] * 20 + [0.0] * 4
BEFORE = [0.0] * 22 + [1.0] * 2


def test_better_on_the_target_and_no_worse_elsewhere_is_promoted() -> None:
    assert verdict(evidence(BETTER, BEFORE))[0] == "promote"


def test_no_change_is_refused() -> None:
    outcome, reason = verdict(evidence(BEFORE, BEFORE))
    assert outcome == "refuse" and reason.startswith("target: rule: +0.000")


def test_chance_improvement_is_refused() -> None:
    one_more = [0.0] * 21 + [1.0] * 3
    assert verdict(evidence(one_more, BEFORE))[0] == "refuse"


def test_lost_knowledge_is_refused() -> None:
    outcome, reason = verdict(evidence(BETTER, BEFORE, right=0.6))
    assert outcome == "refuse" and "regression suite" in reason


def test_one_answer_for_everything_is_refused() -> None:
    outcome, reason = verdict(evidence(BETTER, BEFORE, topic=0.2))
    assert outcome == "refuse" and "stays on the question" in reason


def test_empty_answers_are_refused() -> None:
    outcome, reason = verdict(evidence(BETTER, BEFORE, text="Hm."))
    assert outcome == "refuse" and "well formed" in reason


def test_a_policy_far_from_the_live_one_on_general_prompts_is_refused() -> None:
    outcome, reason = verdict(evidence(BETTER, BEFORE, kl=3.0))
    assert outcome == "refuse" and "distance to the live policy" in reason


def test_too_few_cases_are_refused_however_good() -> None:
    outcome, reason = verdict(evidence([1.0] * 4, [0.0] * 4))
    assert outcome == "refuse" and "at least 8 cases" in reason


def test_a_void_comparison_is_refused_whatever_it_showed() -> None:
    lines = checks(evidence(BETTER, BEFORE), GateConfig())
    decision = decide(lines, version=2, live=1, actor="gate", refused_because="the live version changed")
    assert (decision.verdict, decision.reason) == ("refuse", "the live version changed")


def test_nothing_measured_is_refused() -> None:
    assert verdict(evidence([], []))[0] == "refuse"


def test_nothing_is_asked_of_single_answers_where_none_were_compared_and_all_of_an_empty_comparison() -> None:
    whole = evidence(BETTER, BEFORE)
    rollouts = replace(whole, answers=None)
    assert verdict(rollouts)[0] == "promote" and len(checks(rollouts, GateConfig())) == 3
    none = Answers(clusters=(), new=(), old=(), on_topic_new=(), on_topic_old=())
    assert verdict(replace(whole, answers=none))[0] == "refuse"
