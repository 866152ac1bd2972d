"""Every algorithm that learns from graded rollouts, by name. A new one is a file beside the others and a line here."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

from pydantic import ValidationError

from practicum.algorithms.cispo import Cispo
from practicum.algorithms.dapo import Dapo
from practicum.algorithms.distillation import Distillation
from practicum.algorithms.dppo import Dppo
from practicum.algorithms.dr_grpo import DrGrpo
from practicum.algorithms.group import Graded, Options
from practicum.algorithms.grpo import Grpo
from practicum.algorithms.gspo import Gspo
from practicum.algorithms.maxrl import MaxRl
from practicum.algorithms.rloo import Rloo
from practicum.algorithms.sdpo import Sdpo, TeacherPrompt
from practicum.algorithms.sft import Sft
from practicum.errors import UsageError
from practicum.types.training import Batch

DEFAULT = "dppo"


class Algorithm(Protocol):
    """Turns graded rollouts into the rows of a step.

    `resamples`: the caller draws further groups until enough have a signal. `needs_proximal`: rows must carry
    `old_logprobs`, scored by the trainer before its first update on them. `needs_reference`: the trainer must hold a
    reference. `distill`: what the trainer's `distill` loss must be set to, with a frozen teacher (None: it has no such
    rows).
    """

    @property
    def name(self) -> str:
        """Its name in the table."""

    @property
    def resamples(self) -> bool:
        """See above."""

    @property
    def needs_proximal(self) -> bool:
        """See above."""

    @property
    def needs_reference(self) -> bool:
        """See above."""

    @property
    def distill(self) -> Mapping[str, Any] | None:
        """See above."""

    def signal(self, rollouts: Sequence[Graded]) -> frozenset[Hashable]:
        """The groups that teach something."""

    def batch(self, rollouts: Sequence[Graded], *, on_policy: bool = False) -> Batch:
        """The rows of one step, from whole groups; `on_policy` where the trainer's weights as they stand sampled."""


ALGORITHMS: Mapping[str, type[Any]] = {
    made.name: made for made in (Dppo, Grpo, DrGrpo, Rloo, Dapo, Gspo, Cispo, MaxRl, Sft, Distillation, Sdpo)
}


def algorithm(
    name: str, options: Mapping[str, Any] | None = None, *, teacher_prompt: TeacherPrompt | None = None
) -> Algorithm:
    """The algorithm of that name with these options; `teacher_prompt` renders what `sdpo`'s teacher reads.

    Raises UsageError naming what there is: for an unknown name or option, a value that does not fit, options that
    contradict each other, or `sdpo` without `teacher_prompt`.
    """
    if name not in ALGORITHMS:
        raise UsageError(f"There is no algorithm {name!r}.", hint=f"There are {', '.join(sorted(ALGORITHMS))}.")
    made = ALGORITHMS[name]
    chosen = _options(name, made.Options, options or {})
    if made is Sdpo:
        if teacher_prompt is None:
            raise UsageError(
                "sdpo needs a function that renders the teacher's prompt, and was given none.",
                hint="Use it where prompts can be rendered, or choose another algorithm.",
            )
        return Sdpo(chosen, teacher_prompt)
    try:
        found: Algorithm = made(chosen)
    except ValueError as error:
        raise UsageError(f"{name}: {error}.", hint="Change one of the options.") from error
    return found


def _options(name: str, model: type[Options], options: Mapping[str, Any]) -> Any:
    known = ", ".join(sorted(model.model_fields))
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise UsageError(f"{name} has no option {place!r}.", hint=f"It has {known}.") from error
        said = first["msg"].removeprefix("Value error, ")
        where = f"option {place!r} of {name}" if place else name
        raise UsageError(f"{where}: {said}.", hint=f"The options are {known}.") from error
