"""Filtered behaviour cloning on corrected answers, carried over to what the policy answers now.

    L = - (1 / N) sum_rows u_row sum_t e_t log pi(y_t | x, y_<t),   N = sum_rows sum_t e_t

x is the prompt as it was served, y the answer it should have had and the end-of-turn id, u the trust in the row's
source, and e_t 1 on tokens that the person changed and `kept_weight` on those left as they were served. Source:
filtered BC as the floor of advantage-weighted regression (Peng et al. 2019, arXiv 1910.00177, weights 0 or 1).

Deviations:
1. e_t. What a person changed is what they asked for; the rest is the policy's own text.
2. y. Where a person kept the answer's beginning and only wrote something behind it, y is a fresh answer of the policy
   in training with that text behind it (the first of `tries` that ended by itself), instead of the served one. The
   served body is an older policy's: cloning it would bring back what comments have changed since (measured on the
   default model: after a round of comments that made answers brief, cloning served bodies undid the brevity). Other
   corrections are cloned as they were written. The
   fresh body weighs in full: it is the policy's own sample, so it pulls nowhere, and it keeps what was added from
   spreading to the answer's beginning (measured: without it the sign-off became the whole answer).

Sampled ids stay as they were sampled; only what a person wrote is tokenised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from practicum.algorithms.fresh import FreshAnswers
from practicum.algorithms.order import epoch_order
from practicum.types.local import Completion
from practicum.types.tokens import SamplingParams
from practicum.types.training import Batch, Datum, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A served prompt and the answer it should have had.

    `answer_ids: [T]`, the end-of-turn id included, with `emphasis: [T]`. `added_ids`, the end-of-turn id included, is
    what the person wrote behind a kept beginning; None where they changed more than that.
    """

    row_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    answer_ids: tuple[int, ...]
    emphasis: tuple[float, ...]
    added_ids: tuple[int, ...] | None
    weight: float = 1.0


def emphasis(answer_ids: Sequence[int], served_ids: Sequence[int], kept_weight: float) -> tuple[float, ...]:
    """e_t [T]: `kept_weight` where the corrected answer matches the served one (longest common blocks), else 1."""
    values = [1.0] * len(answer_ids)
    for block in SequenceMatcher(None, list(answer_ids), list(served_ids), autojunk=False).get_matching_blocks():
        values[block.a : block.a + block.size] = [kept_weight] * block.size
    return tuple(values)


def added_text(corrected: str, served: str) -> str | None:
    """What was written behind a kept beginning of the served answer; None if less than half of the text was kept."""
    kept = 0
    while kept < min(len(corrected), len(served)) and corrected[kept] == served[kept]:
        kept += 1
    kept = len(corrected[:kept].rstrip())
    added = corrected[kept:]
    return added if added.strip() and len(added) <= kept else None


class Cloning:
    """Batches of corrections, in shuffled epochs. The phase's first step draws the fresh answers it needs."""

    def __init__(
        self,
        corrections: Sequence[Correction],
        *,
        fresh: FreshAnswers,
        batch: int,
        seed: int,
        tries: int = 1,
        max_tokens: int | None = None,
    ) -> None:
        if not corrections:
            raise ValueError("no corrected answers to clone")
        self._corrections = corrections
        self._fresh = fresh
        self._tries = tries
        self._max_tokens = max_tokens
        self._batch = batch
        self._seed = seed
        self._targets: list[tuple[tuple[int, ...], tuple[float, ...]]] = []

    def batch(self, step: int) -> Batch:
        """The rows of one step."""
        sampled = 0
        if not self._targets:
            sampled = self._aim()
        picks = epoch_order(len(self._corrections), self._batch, step, self._seed)
        total = sum(sum(self._targets[index][1]) for index in picks) or 1.0
        rows = [self._row(index, total) for index in picks]
        return Batch(streams=(Stream(loss="cross_entropy", rows=rows),), sampled_tokens=sampled)

    def _aim(self) -> int:
        """What each correction makes of the policy's present answer; returns the tokens sampled for it."""
        self._targets = [(correction.answer_ids, correction.emphasis) for correction in self._corrections]
        carried = [index for index, correction in enumerate(self._corrections) if correction.added_ids is not None]
        tries = [index for index in carried for _ in range(self._tries)]
        prompts = [(self._corrections[index].prompt_ids, self._corrections[index].params) for index in tries]
        answers, sampled = self._fresh.draw(prompts, max_tokens=self._max_tokens) if tries else ([], 0)
        for index, answer in zip(reversed(tries), reversed(answers), strict=True):
            if answer.finish_reason == "stop" and len(answer.ids) > 1:
                self._targets[index] = self._carried(self._corrections[index], answer)
        return sampled

    def _carried(self, correction: Correction, answer: Completion) -> tuple[tuple[int, ...], tuple[float, ...]]:
        added = correction.added_ids or ()
        said = answer.ids[:-1] if answer.ids[-1] in self._fresh.stop_ids else answer.ids
        if answer.ids[-len(added) :] == added:
            return answer.ids, (1.0,) * len(answer.ids)  # the policy does it already
        return said + added, (1.0,) * (len(said) + len(added))

    def _row(self, index: int, total: float) -> Datum:
        correction, (answer_ids, weights) = self._corrections[index], self._targets[index]
        return Datum(
            row_id=correction.row_id,
            prompt_ids=correction.prompt_ids,
            completion_ids=answer_ids,
            weights=tuple(correction.weight * value / total for value in weights),
        )
