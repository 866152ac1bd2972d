"""Hindsight self-distillation: the policy that has read the comment teaches the one that has not.

For a prompt x with comment f, the student samples y ~ pi(. | x) and both score the same tokens:

    q_t  = softmax over the vocabulary of  log pi_T(. | x, f, y_<t)          T: the frozen teacher
    L    = (1 / N) sum_rows u_row sum_t m_t D(pi(. | x, y_<t) || q_t)         N: completion tokens of the step

Shapes: y: [T]; x and the teacher's prompt differ in length, the completion's ids are shared exactly. Sources: Aligning
language models from user interactions (arXiv 2603.12273), SDPO (arXiv 2601.20802), context distillation (arXiv
2209.15189).

Deviations:
1. Whole distributions, not sampled tokens, since the teacher is the same model and its logits are at hand; the
   divergence, top-k and clip are the trainer's settings.
2. The teacher is frozen when the phase begins; with a live teacher the target would move with the student.
3. The first `skip_tokens` of a completion are masked: there the teacher mostly disagrees on how to address the comment.
4. Rows are drawn afresh from the student for prompts that were served (on-policy); served tokens are trained by
   `served_rows`, with a truncated importance weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from practicum.algorithms.cloning import epoch_order
from practicum.types.local import Completion, LocalPolicy
from practicum.types.messages import Message
from practicum.types.tokens import SampleRequest, SamplingParams
from practicum.types.training import Batch, Datum, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A served prompt and the same prompt with what people said about the answer."""

    row_id: str
    prompt_ids: tuple[int, ...]
    teacher_prompt_ids: tuple[int, ...]
    params: SamplingParams
    weight: float = 1.0


def with_hindsight(messages: Sequence[Message], comments: Sequence[str], answer: str) -> tuple[Message, ...]:
    """`messages` with the comments in the last user message, delimited as data. The answer itself is not shown.

    Raises ValueError if there is no user message.
    """
    last = max((index for index, message in enumerate(messages) if message.role == "user"), default=None)
    if last is None:
        raise ValueError("the conversation has no user message to put a comment into")
    told = f"Comment on your earlier answer: {' '.join(comments)}\n\nAnswer this message accordingly: "
    changed = replace(messages[last], content=told + messages[last].content)
    return (*messages[:last], changed, *messages[last + 1 :])


class Hindsight:
    """Batches of fresh answers to commented prompts, each with its teacher prompt.

    Args:
        lessons: the commented prompts.
        policy: samples version `student`, which `refresh` brings to the trainer's current weights.
        stop_ids: end a completion.
        batch: prompts a step; `seed` makes draws and order repeatable.
        repetition: tells whether an answer's ids loop, for the guard.
    """

    def __init__(
        self,
        lessons: Sequence[Lesson],
        *,
        policy: LocalPolicy,
        student: int,
        refresh: Callable[[], None],
        stop_ids: tuple[int, ...],
        batch: int,
        seed: int,
        skip_tokens: int = 0,
        samples: int = 1,
    ) -> None:
        if not lessons:
            raise ValueError("no commented prompts to learn from")
        self._lessons = lessons
        self._policy = policy
        self._student = student
        self._refresh = refresh
        self._stop_ids = stop_ids
        self._batch = batch
        self._seed = seed
        self._skip = skip_tokens
        self._samples = samples

    def batch(self, step: int) -> Batch:
        """Sample the step's answers with the current weights and pair each with its teacher prompt."""
        picks = epoch_order(len(self._lessons), self._batch, step, self._seed)
        lessons = [self._lessons[index] for index in picks for _ in range(self._samples)]
        self._refresh()
        completions = self._policy.generate(
            [self._request(lesson, step, place) for place, lesson in enumerate(lessons)]
        )
        rows = fresh_rows(lessons, completions, self._skip)
        lengths = [len(completion.ids) for completion in completions]
        looping = [loops(completion.ids) for completion in completions]
        return Batch(
            streams=(Stream(loss="distill", rows=rows),),
            sampled_tokens=sum(lengths),
            facts={
                "fresh_length": sum(lengths) / len(lengths),
                "fresh_repetition": sum(looping) / len(looping),
                "fresh_ended": sum(c.finish_reason == "stop" for c in completions) / len(completions),
            },
        )

    def _request(self, lesson: Lesson, step: int, place: int) -> SampleRequest:
        return SampleRequest(
            request_id=f"fresh-{step}-{place}",
            prompt_ids=lesson.prompt_ids,
            version=self._student,
            stop_ids=self._stop_ids,
            params=replace(lesson.params, stop=(), seed=(self._seed * 1_000_003 + step) * 1_009 + place),
        )


def fresh_rows(lessons: Sequence[Lesson], completions: Sequence[Completion], skip_tokens: int) -> list[Datum]:
    """One row an answer; weights sum to the mean trust over all completion tokens of the step."""
    total = float(sum(len(completion.ids) for completion in completions)) or 1.0
    return [
        Datum(
            row_id=f"{lesson.row_id}:{completion.request_id}",
            prompt_ids=lesson.prompt_ids,
            completion_ids=completion.ids,
            weights=tuple(0.0 if t < skip_tokens else lesson.weight / total for t in range(len(completion.ids))),
            logprobs=completion.logprobs,
            teacher_prompt_ids=lesson.teacher_prompt_ids,
            temperature=lesson.params.scoring_temperature,
        )
        for lesson, completion in zip(lessons, completions, strict=True)
    ]


def loops(ids: Sequence[int], *, run: int = 4, repeats: int = 4) -> bool:
    """Whether some run of `run` ids stands `repeats` times or more."""
    counts: dict[tuple[int, ...], int] = {}
    for start in range(len(ids) - run + 1):
        key = tuple(ids[start : start + run])
        counts[key] = counts.get(key, 0) + 1
    return bool(counts) and max(counts.values()) >= repeats
