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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt

from practicum.algorithms.distillation import DistillOptions
from practicum.algorithms.group import Graded, Options, absent, scored
from practicum.algorithms.selected import Selected, Taught, trained_rows
from practicum.types.episodes import TrainingRow
from practicum.types.training import LossName

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


class Sdpo(Selected[SdpoOptions]):
    """Distillation from the policy that was told how it is done."""

    name = "sdpo"
    Options: ClassVar[type[Options]] = SdpoOptions
    loss: ClassVar[LossName] = "distill"

    def __init__(self, options: SdpoOptions, teacher_prompt: TeacherPrompt) -> None:
        super().__init__(options)
        self._teacher_prompt = teacher_prompt

    @property
    def distill(self) -> Mapping[str, Any]:
        """The divergence."""
        return self.options.divergence_settings()

    def taught(self, rollout: Graded, rollouts: Sequence[Graded]) -> list[Taught] | str:
        """Rows for which there is something to tell, under the prompt that tells it."""
        reason = absent(rollout, mask_truncated=self.options.mask_truncated, needs_reward=False)
        if reason is not None:
            return reason
        solution, feedback = self._told(rollout, rollouts)
        if solution is None and not feedback:
            return _NOTHING
        prompts = [
            (row, self._teacher_prompt(Told(rollout=rollout, row=row, solution=solution, feedback=feedback)))
            for row in trained_rows(rollout)
        ]
        return [(row, prompt) for row, prompt in prompts if prompt is not None] or _NO_PROMPT

    def _told(self, rollout: Graded, rollouts: Sequence[Graded]) -> tuple[Graded | None, str]:
        options = self.options
        others = (
            each
            for each in rollouts
            if each.group == rollout.group and each.rollout_id != rollout.rollout_id and each.length
        )
        solution = next((each for each in others if scored(each.reward) and each.reward >= options.success), None)
        speaks = options.feedback == "always" or (options.feedback == "without_solution" and solution is None)
        return solution, rollout.feedback if speaks else ""
