"""Keep what was not asked to change: rows of general prompts on which the policy must stay what it was.

    L = (w / N) sum_rows sum_t KL(pi(. | x, y_<t) || pi_live(. | x, y_<t))

x is a general prompt, y an answer that the live policy gave to it when the run began, N the rows' tokens in the step, w
the weight. It is the `distill` loss against the reference under the row's own prompt: comments have no part in it.
Source: on-policy distillation from the previous release as the way to keep what an adaptation would lose (Thinking
Machines 2025); here during the adaptation instead of after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from practicum.algorithms.fresh import FreshAnswers
from practicum.algorithms.order import epoch_order
from practicum.types.local import Completion
from practicum.types.tokens import SamplingParams
from practicum.types.training import Batch, Datum, Stream


class Inner(Protocol):
    """A source of rows."""

    def batch(self, step: int) -> Batch:
        """The rows of one step."""


class Anchors:
    """Answers of the live policy to general prompts, drawn once a run: at its first step, before any update."""

    def __init__(self, prompts: Sequence[tuple[int, ...]], fresh: FreshAnswers, *, max_tokens: int) -> None:
        if not prompts:
            raise ValueError("no general prompts to replay")
        self._prompts = prompts
        self._fresh = fresh
        self._max_tokens = max_tokens
        self._answers: list[Completion] = []

    def rows(self, step: int, count: int, weight: float, seed: int) -> tuple[list[Datum], int]:
        """`count` rows whose weights sum to `weight`, and the tokens sampled for them just now."""
        sampled = 0
        if not self._answers:
            params = SamplingParams(max_tokens=self._max_tokens)
            self._answers, sampled = self._fresh.draw([(prompt, params) for prompt in self._prompts])
        picks = epoch_order(len(self._prompts), count, step, seed)
        total = float(sum(len(self._answers[index].ids) for index in picks))
        return [
            Datum(
                row_id=f"replay-{index}",
                prompt_ids=self._prompts[index],
                completion_ids=self._answers[index].ids,
                weights=(weight / total,) * len(self._answers[index].ids),
                teacher_prompt_ids=self._prompts[index],
                against="reference",
            )
            for index in picks
        ], sampled


class WithReplay:
    """Another source's batches with a few anchor rows added to each."""

    def __init__(self, inner: Inner, anchors: Anchors, *, rows: int, weight: float, seed: int) -> None:
        self._inner = inner
        self._anchors = anchors
        self._rows = rows
        self._weight = weight
        self._seed = seed

    def batch(self, step: int) -> Batch:
        """The inner source's rows and the anchors; the anchors come first, so they are drawn before any update."""
        rows, sampled = self._anchors.rows(step, self._rows, self._weight, self._seed)
        inner = self._inner.batch(step)
        return Batch(
            streams=(*inner.streams, Stream(loss="distill", name="replay", rows=rows, anchor=True)),
            sampled_tokens=inner.sampled_tokens + sampled,
            on_policy=inner.on_policy,
            facts=inner.facts,
        )
