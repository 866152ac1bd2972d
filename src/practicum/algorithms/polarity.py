"""Thumbs, scores and outcomes on served answers: REINFORCE with a running baseline and softened negatives.

    A_i = s_i - b_i,   b_(i+1) = .95 b_i + .05 s_i,   b_0 = 0,   in order of arrival, b_i read before its update
    L   = - (1 / N) sum_i u_i sum_t keep_t n_i sg[min(pi/mu, 2)] A_i log pi(y_t | x, y_<t)

s_i in [-1, 1] is what people made of answer i, y its served tokens with the sampler's logprobs log mu, N all of the
step's completion tokens, n_i .5 for A_i < 0 and 1 otherwise, keep the trust mask of `surrogates.trust_mask`. Sources:
the baseline is SPIRAL's running one (arXiv 2506.24119), which needs no second answer to the same prompt; the softened
negatives follow TOPR (arXiv 2503.14286) per token.
Deviation: one advantage an answer, spread over all its tokens, since a thumb does not say which of them it means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from practicum.algorithms.order import epoch_order
from practicum.types.training import Batch, Datum, PolicyGradient, Stream

_DECAY = 0.95
_SOFTENED = PolicyGradient(negative_scale=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A served answer, `answer_ids`, `logprobs`: [T] at `temperature`, and `polarity` in [-1, 1] from people.

    `imposed`: [T], or empty for none: tokens that the policy did not choose, which weigh nothing.
    """

    row_id: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    temperature: float
    polarity: float
    weight: float = 1.0
    imposed: tuple[bool, ...] = ()


def advantages(polarities: Sequence[float]) -> list[float]:
    """A_i [n] against the running baseline, in order of arrival."""
    baseline, found = 0.0, []
    for value in polarities:
        found.append(value - baseline)
        baseline = _DECAY * baseline + (1 - _DECAY) * value
    return found


class Polarity:
    """Batches of judged answers, in shuffled epochs. Verdicts come in order of arrival."""

    def __init__(self, verdicts: Sequence[Verdict], *, batch: int, seed: int) -> None:
        if not verdicts:
            raise ValueError("no judged answers to learn from")
        self._verdicts = verdicts
        self._advantages = advantages([verdict.polarity for verdict in verdicts])
        self._batch = batch
        self._seed = seed

    def batch(self, step: int) -> Batch:
        """The rows of one step; an answer whose advantage is zero weighs nothing."""
        picks = epoch_order(len(self._verdicts), self._batch, step, self._seed)
        total = float(sum(len(self._verdicts[index].answer_ids) for index in picks)) or 1.0
        rows = [self._row(index, total) for index in picks]
        return Batch(streams=(Stream(loss="policy_gradient", rows=rows, policy_gradient=_SOFTENED),))

    def _row(self, index: int, total: float) -> Datum:
        verdict, advantage = self._verdicts[index], self._advantages[index]
        length = len(verdict.answer_ids)
        weight = verdict.weight / total if advantage else 0.0
        return Datum(
            row_id=verdict.row_id,
            prompt_ids=verdict.prompt_ids,
            completion_ids=verdict.answer_ids,
            weights=tuple(0.0 if imposed else weight for imposed in verdict.imposed or (False,) * length),
            advantages=(advantage,) * length,
            logprobs=verdict.logprobs,
            temperature=verdict.temperature,
        )
