"""Hindsight self-distillation: the policy that has read the comment teaches the one that has not.

For a prompt x with comment f, the student samples y ~ pi(. | x) and both score the same tokens:

    log q_t = log pi_T(. | x, y_<t) + c (log pi_T(. | x, f, y_<t) - log pi_T(. | x, f0, y_<t))  + const
    L       = (1 / N) sum_rows u_row sum_t m_t D(pi(. | x, y_<t) || q_t)

T is the frozen teacher, f0 a remark that asks for nothing in f's place, c the contrast, N the completion tokens of the
step.

Shapes: y: [T]; x and the teacher's prompt differ in length, the completion's ids are shared exactly. Sources: Aligning
language models from user interactions (arXiv 2603.12273), SDPO (arXiv 2601.20802), context distillation (arXiv
2209.15189).

Deviations:
1. Whole distributions, not sampled tokens, since the teacher is the same model and its logits are at hand; the
   divergence, top-k and clip are the trainer's settings.
2. The teacher is the live policy, frozen over all rounds. Were it to move with the student, the contrast would turn
   round: measured, a second round under a moved teacher undid the first, because the policy was brief untold by then.
3. `skip_tokens` can mask the first tokens of a completion; against a remark that asks for nothing (5) the teacher no
   longer differs there in how it speaks of comments, and unmasked openings stay more natural.
4. A first round takes the served tokens, which the policy sampled without knowing the comment. Whole distributions are
   compared at their positions, so no importance weight is needed for the fixed point to be q, whatever the prefixes.
   Later rounds draw fresh answers, whose prefixes are the student's own.
5. The contrast (see `losses.contrasted`): f0 in place of no remark at all takes out what being commented on does by
   itself, and c > 1 makes up for a small model's half-heeding. Measured on the default model, 24 messages, three
   comments each: sampled from itself, the teacher contrasted with no remark is brief (.96) but .75 of its answers speak
   of the comment and .67 are on the question; contrasted with f0, at the same c = 2, .96, .21 and .96.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from practicum.algorithms.fresh import FreshAnswers
from practicum.algorithms.order import epoch_order
from practicum.types.local import Completion
from practicum.types.messages import Message
from practicum.types.tokens import SamplingParams
from practicum.types.training import Batch, Datum, Stream

_NOTHING = ("Thank you.", "This is fine.", "Noted, thank you.", "All right.", "Seen it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A served prompt, the same prompt with what people said about the answer, the same with remarks that ask for
    nothing in its place (None: no contrast), and that answer as it was sampled.
    """

    row_id: str
    prompt_ids: tuple[int, ...]
    teacher_prompt_ids: tuple[int, ...]
    contrast_prompt_ids: tuple[int, ...] | None = None
    params: SamplingParams
    served: Completion
    weight: float = 1.0


def nothing_said(count: int) -> tuple[str, ...]:
    """`count` remarks that ask for nothing, to contrast comments with."""
    return tuple(_NOTHING[index % len(_NOTHING)] for index in range(count))


def with_hindsight(messages: Sequence[Message], comments: Sequence[str]) -> tuple[Message, ...]:
    """`messages` with the comments before the last user message's text. The answer itself is not shown.

    Raises ValueError if there is no user message.
    """
    last = max((index for index, message in enumerate(messages) if message.role == "user"), default=None)
    if last is None:
        raise ValueError("the conversation has no user message to put a comment into")
    if len(comments) == 1:
        told = f"Comment on your earlier answer: {comments[0]}"
    else:
        told = "Comments on your earlier answers:\n" + "\n".join(f"- {comment}" for comment in comments)
    content = f"{told}\n\nAnswer this message accordingly: {messages[last].content}"
    changed = replace(messages[last], content=content)
    return (*messages[:last], changed, *messages[last + 1 :])


class Hindsight:
    """One round over commented prompts: an answer to each of them, with its teacher prompt, in minibatches.

    Args:
        lessons: the commented prompts.
        fresh: draws the round's answers when its first step asks for them; None for a round on the served ones.
        batch: rows a step; `seed` fixes their order.
        skip_tokens: masked at the start of each answer.
        max_tokens: length at which an answer is cut for training; what follows it is not needed to learn from it.
    """

    def __init__(
        self,
        lessons: Sequence[Lesson],
        *,
        fresh: FreshAnswers | None,
        batch: int,
        seed: int,
        skip_tokens: int,
        max_tokens: int,
    ) -> None:
        if not lessons:
            raise ValueError("no commented prompts to learn from")
        self._lessons = lessons
        self._fresh = fresh
        self._batch = batch
        self._seed = seed
        self._skip = skip_tokens
        self._max_tokens = max_tokens
        self._pool: list[Completion] = []

    def batch(self, step: int) -> Batch:
        """The rows of one step; the first one samples the round."""
        sampled = 0
        if not self._pool:
            self._pool, sampled = self._answers()
        kind = "served" if self._fresh is None else "fresh"
        picks = epoch_order(len(self._lessons), self._batch, step, self._seed)
        lessons, answers = [self._lessons[i] for i in picks], [self._pool[i] for i in picks]
        return Batch(
            streams=(Stream(loss="distill", rows=rows_of(lessons, answers, self._skip)),),
            sampled_tokens=sampled,
            on_policy=step == 0 and self._fresh is not None,
            facts={
                f"{kind}_length": sum(len(answer.ids) for answer in answers) / len(answers),
                f"{kind}_repetition": sum(loops(answer.ids) for answer in answers) / len(answers),
                f"{kind}_ended": sum(answer.finish_reason == "stop" for answer in answers) / len(answers),
            },
        )

    def _answers(self) -> tuple[list[Completion], int]:
        if self._fresh is None:
            return [_cut(lesson.served, self._max_tokens) for lesson in self._lessons], 0
        prompts = [(lesson.prompt_ids, lesson.params) for lesson in self._lessons]
        return self._fresh.draw(prompts, max_tokens=self._max_tokens)


def _cut(answer: Completion, max_tokens: int) -> Completion:
    """A causal prefix: the tokens before the cut do not depend on those behind it."""
    if len(answer.ids) <= max_tokens:
        return answer
    return replace(answer, ids=answer.ids[:max_tokens], logprobs=answer.logprobs[:max_tokens], finish_reason="length")


def rows_of(lessons: Sequence[Lesson], completions: Sequence[Completion], skip_tokens: int) -> list[Datum]:
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
            contrast_prompt_ids=lesson.contrast_prompt_ids,
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
