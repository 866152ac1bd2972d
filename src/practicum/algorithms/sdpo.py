"""SDPO: self-distillation policy optimisation (arXiv 2601.20802).

    L = (1 / N) sum_i sum_t m_t D( pi(. | x_i, y_<t) , sg q(. | c_i, y_<t) )

c_i is the prompt of rollout i with a correct solution of the same task in it (the first sibling in the group with a
reward of `success` or more, never the rollout itself), or with the raw feedback on the rollout, or both: `feedback`
says when. The policy that has read it teaches the one that has not, at the very tokens that were sampled. A rollout
with neither is left out, so a lone success teaches its siblings and not itself. D is the Jensen-Shannon divergence over
the student's top 100 tokens and a tail bucket; q is the trainer's frozen teacher.

How a teacher's prompt reads is the caller's: it gives a function from what is told to prompt ids, which sees the
sibling's rows and may strip its thinking. The rollout's own attempt should not be in it (the paper's ablation:
entropy collapses).
Deviations: 1. A frozen teacher in place of a moving average (the paper's ablation: 48.8 against 49.3). 2. No importance
weight: distributions are compared position by position. 3. Whole rows of a rollout, so every turn of an agent is
taught; the paper has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt

from practicum.algorithms.distillation import DistillOptions
from practicum.algorithms.group import Graded, absent, datum, facts, scored
from practicum.types.episodes import TrainingRow
from practicum.types.training import Batch, Stream

_NOTHING = "nothing to learn from: no other success in its group, and no feedback"
_NO_PROMPT = "its teacher's prompt could not be made"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the teacher of one row is told: a sibling that succeeded (None: none), and feedback ("" for none)."""

    rollout: Graded
    row: TrainingRow
    solution: Graded | None
    feedback: str


# The ids of the teacher's prompt, whole, or None where there can be none (it would not fit the context).
TeacherPrompt = Callable[[Told], tuple[int, ...] | None]


class SdpoOptions(DistillOptions):
    """`success`: the least reward of a solution. `feedback`: told only where there is no solution, always, or never."""

    success: float = 0.5
    feedback: Literal["without_solution", "always", "never"] = "without_solution"
    divergence: Literal["reverse_kl", "forward_kl", "jsd"] = "jsd"
    top_k: NonNegativeInt = Field(100)


class Sdpo:
    """Distillation from the policy that was told how it is done."""

    name: ClassVar[str] = "sdpo"
    Options: ClassVar[type[SdpoOptions]] = SdpoOptions
    resamples: ClassVar[bool] = False
    needs_proximal: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = False

    def __init__(self, options: SdpoOptions, teacher_prompt: TeacherPrompt) -> None:
        self.options = options
        self._teacher_prompt = teacher_prompt

    @property
    def distill(self) -> Mapping[str, Any]:
        """What the trainer's `distill` loss must be set to; its teacher must be frozen before."""
        return self.options.divergence_settings()

    def signal(self, rollouts: Sequence[Graded]) -> frozenset[Hashable]:
        """The groups in which a rollout can be told something."""
        taught = (self._told(each, rollouts) for each in rollouts)
        return frozenset(told[0].rollout.group for told in taught if not isinstance(told, str))

    def batch(self, rollouts: Sequence[Graded], *, on_policy: bool = False) -> Batch:
        """The rows of one step."""
        left_out: Counter[str] = Counter()
        taught: list[tuple[TrainingRow, tuple[int, ...]]] = []
        count = 0
        for rollout in rollouts:
            told = self._told(rollout, rollouts)
            if isinstance(told, str):
                left_out[told] += 1
                continue
            prompts = [(each.row, self._teacher_prompt(each)) for each in told]
            made = [(row, prompt) for row, prompt in prompts if prompt is not None]
            taught += made
            count += bool(made)
            if not made:
                left_out[_NO_PROMPT] += 1
        total = sum(row.trained_tokens for row, _ in taught)
        rows = [replace(datum(row, 1.0 / total), teacher_prompt_ids=prompt) for row, prompt in taught]
        return Batch(
            streams=(Stream(loss="distill", rows=rows),),
            sampled_tokens=sum(each.length for each in rollouts),
            on_policy=on_policy,
            facts=facts(rollouts, left_out) | {"with_signal": float(count)},
        )

    def _told(self, rollout: Graded, rollouts: Sequence[Graded]) -> list[Told] | str:
        """What each row's teacher is told, or why there is nothing to tell."""
        options = self.options
        reason = absent(rollout, mask_truncated=options.mask_truncated, needs_reward=False)
        if reason is not None:
            return reason
        others = (
            each
            for each in rollouts
            if each.group == rollout.group and each.rollout_id != rollout.rollout_id and each.length
        )
        solution = next((each for each in others if scored(each.reward) and each.reward >= options.success), None)
        speaks = options.feedback == "always" or (options.feedback == "without_solution" and solution is None)
        feedback = rollout.feedback if speaks else ""
        if solution is None and not feedback:
            return _NOTHING
        return [
            Told(rollout=rollout, row=row, solution=solution, feedback=feedback)
            for row in rollout.rows
            if row.trained_tokens
        ]
