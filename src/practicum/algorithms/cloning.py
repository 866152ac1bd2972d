"""Filtered behaviour cloning on corrected answers.

    L = - (1 / N) sum_rows u_row sum_t e_t log pi(y_t | x, y_<t),   N = sum_rows sum_t e_t

x is the prompt as it was served, y the corrected answer and the end-of-turn id, u the trust in the row's source, and
e_t 1 on tokens that the person changed and `kept_weight` on those left as they were served. The corrected text was
written by a person and never sampled, so tokenising it is right here, and there is no sampler logprob to correct for.
Source: filtered BC as the floor of advantage-weighted regression (Peng et al. 2019, arXiv 1910.00177, weights 0 or 1).
Deviation: e_t. What a person changed is what they asked for; the rest is the policy's own text, kept in the loss only
so that the change is learned where it stands.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from practicum.types.training import Batch, Datum, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A prompt `prompt_ids: [P]` and the answer it should have had, `answer_ids: [T]`, end-of-turn id included.

    `emphasis: [T]` is e_t; `weight` the trust in the source.
    """

    row_id: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    emphasis: tuple[float, ...]
    weight: float = 1.0


def emphasis(answer_ids: Sequence[int], served_ids: Sequence[int], kept_weight: float) -> tuple[float, ...]:
    """e_t [T]: `kept_weight` where the corrected answer matches the served one (longest common blocks), else 1."""
    values = [1.0] * len(answer_ids)
    for block in SequenceMatcher(None, list(answer_ids), list(served_ids), autojunk=False).get_matching_blocks():
        values[block.a : block.a + block.size] = [kept_weight] * block.size
    return tuple(values)


def epoch_order(n: int, batch: int, step: int, seed: int) -> list[int]:
    """Indices of step `step` when n rows are gone through in shuffled epochs of equal steps, at most `batch` at a time.

    No step takes a row twice, and each epoch takes every row once.
    """
    per_epoch = -(-n // batch)
    epoch, place = divmod(step, per_epoch)
    order = list(range(n))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order[place * n // per_epoch : (place + 1) * n // per_epoch]


def rows(demonstrations: Sequence[Demonstration], normaliser: float | None = None) -> list[Datum]:
    """Training rows whose weights sum to the mean trust; `normaliser` overrides N."""
    total = normaliser or sum(sum(demo.emphasis) for demo in demonstrations)
    return [
        Datum(
            row_id=demo.row_id,
            prompt_ids=demo.prompt_ids,
            completion_ids=demo.answer_ids,
            weights=tuple(demo.weight * value / total for value in demo.emphasis),
        )
        for demo in demonstrations
    ]


class Cloning:
    """Batches of demonstrations, in shuffled epochs. `share` scales the loss where it is added to another's."""

    def __init__(self, demonstrations: Sequence[Demonstration], *, batch: int, seed: int, share: float = 1.0) -> None:
        if not demonstrations:
            raise ValueError("no demonstrations to clone")
        self._demonstrations = demonstrations
        self._batch = batch
        self._seed = seed
        self._share = share

    def batch(self, step: int) -> Batch:
        """The rows of one step."""
        picks = epoch_order(len(self._demonstrations), self._batch, step, self._seed)
        chosen = [self._demonstrations[index] for index in picks]
        total = sum(sum(demo.emphasis) for demo in chosen) / self._share
        return Batch(streams=(Stream(loss="cross_entropy", rows=rows(chosen, total)),))
