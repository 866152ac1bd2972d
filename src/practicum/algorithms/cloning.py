"""Filtered behaviour cloning on corrected answers, carried over to what the policy answers now.

A corrected answer as it was written:

    L = - sum_rows u_row / N sum_t e_t log pi(y_t | x, y_<t)

Where a person kept the answer's beginning and only wrote something behind it, the row is a fresh answer b of the policy
as the phase begins (pi_0), with that text z behind it:

    L = sum_rows u_row / N [ sum_{t in b} KL(pi(. | x, b_<t) || R pi_0(. | x, b_<t))
                             - sum_{t in z} log pi(z_t | x, b, z_<t) ]

R pi_0 is pi_0 that says z's first token where it would have ended (`losses.redirected`), so the target is exactly the
policy that answers as it does now and then adds z. x is the prompt as it was served, y the answer it should have had
with the end-of-turn id, u the trust in the row's source, e_t 1 on tokens that the person changed and `kept_weight` on
those left as they were served, N the step's tokens, each by its e_t. Source: filtered BC as the floor of
advantage-weighted regression (Peng et al. 2019, arXiv 1910.00177, weights 0 or 1).

Deviations:
1. e_t. What a person changed is what they asked for; the rest is the policy's own text.
2. The fresh body. The served one is an older policy's: cloning it would bring back what comments have changed since
   (measured on the default model: after a round of comments that made answers brief, cloning served bodies undid the
   brevity). All of `tries` that ended by themselves are rows.
3. Whole distributions on the body, not its sampled tokens. Cloning the tokens lets the added text spread to where it
   does not belong: on the default model (17 corrections, 11 steps, one seed, 64 messages outside training) 20 answers
   began with the sign-off and 3 were loops (rate 5e-4); with the whole distributions none and 1 (rate 7e-4).

Sampled ids stay as they were sampled; only what a person wrote is tokenised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class _Target:
    """Row `place` of a correction, by its index: the answer [T], its tokens' weights [T], and how many of the last ones
    stand behind a fresh body (0: no such row).
    """

    correction: int
    place: int
    ids: tuple[int, ...]
    weights: tuple[float, ...]
    added: int = 0


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
        self._targets: list[_Target] = []

    @property
    def rows(self) -> int:
        """Rows of an epoch, if every fresh answer ends by itself."""
        return sum(1 if correction.added_ids is None else self._tries for correction in self._corrections)

    def batch(self, step: int) -> Batch:
        """The rows of one step."""
        sampled = 0
        if not self._targets:
            sampled = self._aim()
        picks = [self._targets[index] for index in epoch_order(len(self._targets), self._batch, step, self._seed)]
        total = sum(sum(target.weights) for target in picks) or 1.0
        written = [self._row(target, total) for target in picks if not target.added]
        carried = [self._carried_row(target, total) for target in picks if target.added]
        streams = (Stream(loss="cross_entropy", rows=written), Stream(loss="distill", name="carried", rows=carried))
        return Batch(streams=tuple(stream for stream in streams if stream.rows), sampled_tokens=sampled)

    def _aim(self) -> int:
        """What each correction makes of the policy's present answers; returns the tokens sampled for them."""
        tries = [
            index
            for index, correction in enumerate(self._corrections)
            for _ in range(self._tries if correction.added_ids is not None else 0)
        ]
        prompts = [(self._corrections[index].prompt_ids, self._corrections[index].params) for index in tries]
        answers, sampled = self._fresh.draw(prompts, max_tokens=self._max_tokens) if tries else ([], 0)
        ended: dict[int, list[Completion]] = {index: [] for index in range(len(self._corrections))}
        for index, answer in zip(tries, answers, strict=True):
            without_body = (answer.ids[-1:], self._corrections[index].added_ids)
            if answer.finish_reason == "stop" and answer.ids not in without_body:
                ended[index].append(answer)
        for index, correction in enumerate(self._corrections):
            carried = [self._carried(index, place, answer) for place, answer in enumerate(ended[index])]
            self._targets += carried or [_Target(index, 0, correction.answer_ids, correction.emphasis)]
        return sampled

    def _carried(self, index: int, place: int, answer: Completion) -> _Target:
        added = self._corrections[index].added_ids or ()
        if answer.ids[-len(added) :] == added:  # the policy does it already
            ids = answer.ids
        else:
            ids = (answer.ids[:-1] if answer.ids[-1] in self._fresh.stop_ids else answer.ids) + added
        return _Target(index, place, ids, (1.0,) * len(ids), added=len(added))

    def _row(self, target: _Target, total: float) -> Datum:
        correction = self._corrections[target.correction]
        return Datum(
            row_id=f"{correction.row_id}:{target.place}",
            prompt_ids=correction.prompt_ids,
            completion_ids=target.ids,
            weights=tuple(correction.weight * value / total for value in target.weights),
        )

    def _carried_row(self, target: _Target, total: float) -> Datum:
        row = self._row(target, total)
        body = len(target.ids) - target.added
        return replace(
            row,
            teacher_prompt_ids=row.prompt_ids,
            written=(False,) * body + (True,) * target.added,
            redirect=(self._fresh.stop_ids, target.ids[body]),
        )
