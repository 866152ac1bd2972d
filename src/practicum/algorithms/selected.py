"""The base of algorithms that give no advantage: which rows of which rollouts are taught, and by what.

Every sampled token of the rows that are taught weighs the same, 1 over their number in the step. A rollout that is not
taught is counted with its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from practicum.algorithms.group import Graded, Options, datum, facts
from practicum.types.episodes import TrainingRow
from practicum.types.training import Batch, LossName, Stream

# A row, and the prompt under which the teacher sees its completion (None: there is no teacher).
Taught = tuple[TrainingRow, tuple[int, ...] | None]
Chosen = TypeVar("Chosen", bound=Options)


class Selected(Generic[Chosen]):
    """One stream of `loss` over what `taught` gives. A subclass sets `name`, `Options` and `loss`."""

    name: ClassVar[str]
    Options: ClassVar[type[Options]]
    loss: ClassVar[LossName]
    resamples: ClassVar[bool] = False
    needs_proximal: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = False

    def __init__(self, options: Chosen) -> None:
        self.options = options

    @property
    def distill(self) -> Mapping[str, Any] | None:
        """What the trainer's `distill` loss must be set to; its teacher must be frozen before."""
        return None

    def taught(self, rollout: Graded, rollouts: Sequence[Graded]) -> list[Taught] | str:
        """The rows of a rollout among all of the step, or why there are none."""
        raise NotImplementedError

    def signal(self, rollouts: Sequence[Graded]) -> frozenset[Hashable]:
        """The groups that teach something."""
        return frozenset(each.group for each in rollouts if not isinstance(self.taught(each, rollouts), str))

    def batch(self, rollouts: Sequence[Graded], *, on_policy: bool = False) -> Batch:
        """The rows of one step."""
        found = [(each, self.taught(each, rollouts)) for each in rollouts]
        rows = [row for _, taught in found if not isinstance(taught, str) for row in taught]
        total = sum(row.trained_tokens for row, _ in rows)
        live = {each.group for each, taught in found if not isinstance(taught, str)}
        figures = {
            "with_signal": float(sum(not isinstance(taught, str) for _, taught in found)),
            "groups_with_signal": float(len(live)),
        }
        data = [replace(datum(row, 1.0 / total), teacher_prompt_ids=prompt) for row, prompt in rows]
        return Batch(
            streams=(Stream(loss=self.loss, rows=data),),
            sampled_tokens=sum(each.length for each in rollouts),
            on_policy=on_policy,
            facts=facts(rollouts, Counter(taught for _, taught in found if isinstance(taught, str))) | figures,
        )


def trained_rows(rollout: Graded) -> list[TrainingRow]:
    """The rows of a rollout that hold a sampled token."""
    return [row for row in rollout.rows if row.trained_tokens]
