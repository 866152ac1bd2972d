"""Rows to tensors: what can be trained on, and the flat per-token targets of a micro-batch.

Legend: N completion tokens of a micro-batch, row after row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from practicum.engines.embedded.layout import Pair, prompts_of
from practicum.errors import ContextOverflow, RequestError
from practicum.types.training import Datum, LossName, PolicyGradient


@dataclass(frozen=True, slots=True)
class Targets:
    """Per completion token `[N]`: the id, its weight, advantage (0 if none), sampler logprob (NaN if unknown), the
    temperature it was sampled at, whether a person wrote it, the trainer's logprob before the update (NaN if unknown),
    and the number of its row.
    """

    ids: torch.Tensor
    weights: torch.Tensor
    advantages: torch.Tensor
    sampler_logprobs: torch.Tensor
    temperatures: torch.Tensor
    written: torch.Tensor
    old_logprobs: torch.Tensor
    rows: torch.Tensor

    def to(self, device: torch.device) -> Targets:
        """The same on a device."""
        return Targets(*(getattr(self, name).to(device) for name in self.__slots__))

    def at(self, index: torch.Tensor | slice) -> Targets:
        """The same for some of the tokens."""
        return Targets(
            self.ids[index],
            self.weights[index],
            self.advantages[index],
            self.sampler_logprobs[index],
            self.temperatures[index],
            self.written[index],
            self.old_logprobs[index],
            self.rows[index],
        )


def check_rows(
    batch: Sequence[Datum],
    loss: LossName,
    *,
    context_length: int,
    vocabulary: int,
    policy_gradient: PolicyGradient = PolicyGradient(),
) -> None:
    """Refuse a row that cannot be trained on as it is; nothing is cut, padded or guessed.

    Raises: RequestError, ContextOverflow.
    """
    seen: set[str] = set()
    if len({row.against for row in batch}) > 1:
        raise RequestError("the rows of one batch have different frozen teachers.", param="against")
    for row in batch:
        if row.row_id in seen:
            raise RequestError(f"row id {row.row_id!r} occurs twice in one batch.", param="row_id")
        seen.add(row.row_id)
        _check_row(row, loss, vocabulary)
        if loss == "policy_gradient" and policy_gradient.against == "proximal" and row.old_logprobs is None:
            raise RequestError(
                f"row {row.row_id}: a ratio against the proximal policy needs old_logprobs.",
                hint="Score the rows with the trainer before its first update on them, or compare with the sampler.",
            )
        for prompt in prompts_of(row).values():
            if len(prompt) + len(row.completion_ids) > context_length:
                raise ContextOverflow(
                    f"row {row.row_id} has {len(prompt) + len(row.completion_ids)} tokens; "
                    f"the context holds {context_length}.",
                    hint="Leave the row out; it is never cut.",
                )


def _check_row(row: Datum, loss: LossName, vocabulary: int) -> None:
    if not row.temperature > 0:
        raise RequestError(f"row {row.row_id}: temperature {row.temperature}; use the scoring temperature.")
    if loss == "policy_gradient" and (row.advantages is None or _unknown_logprob(row)):
        raise RequestError(
            f"row {row.row_id}: policy_gradient needs an advantage and the sampler's logprob for every trained token.",
            hint="A row whose logprobs are unknown cannot be corrected for how it was sampled; leave it out.",
        )
    if loss == "distill" and not row.teacher_prompt_ids:
        raise RequestError(f"row {row.row_id}: distill needs teacher_prompt_ids.")
    for name, values in (
        ("weights", row.weights),
        ("advantages", row.advantages),
        ("logprobs", row.logprobs),
        ("old_logprobs", row.old_logprobs),
    ):
        if any(value is not None and not math.isfinite(value) for value in values or ()):
            raise RequestError(f"row {row.row_id}: {name} holds a value that is not finite.")
    moved = () if row.redirect is None else (*row.redirect[0], row.redirect[1])
    for ids in (*prompts_of(row).values(), row.completion_ids, moved):
        if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
            raise RequestError(f"row {row.row_id}: an id is outside the vocabulary of {vocabulary}.")


def _unknown_logprob(row: Datum) -> bool:
    """Whether a token of non-zero weight has no logprob of its sampler's; the others were not sampled."""
    if row.logprobs is None:
        return True
    return any(value is None and weight for value, weight in zip(row.logprobs, row.weights, strict=True))


Under = Literal["own", "teacher", "contrast"]


def pairs_of(rows: Sequence[Datum], under: Under = "own") -> list[Pair]:
    """The rows' completions under their own prompts, the teacher's, or those it is contrasted with."""
    return [(_prompt(row, under), row.completion_ids) for row in rows]


def _prompt(row: Datum, under: Under) -> tuple[int, ...]:
    if under == "teacher":
        return row.teacher_prompt_ids or ()
    return (row.contrast_prompt_ids if under == "contrast" else None) or row.prompt_ids


def _written(row: Datum) -> tuple[bool, ...]:
    return row.written or (False,) * len(row.completion_ids)


def targets_of(rows: Sequence[Datum]) -> Targets:
    """The rows' completion tokens, one after the other."""
    unknown = float("nan")
    logprobs = [[unknown] * len(row.completion_ids) if row.logprobs is None else row.logprobs for row in rows]
    advantages = [[0.0] * len(row.completion_ids) if row.advantages is None else row.advantages for row in rows]
    old = [[unknown] * len(row.completion_ids) if row.old_logprobs is None else row.old_logprobs for row in rows]
    return Targets(
        ids=torch.tensor([token for row in rows for token in row.completion_ids], dtype=torch.long),
        weights=torch.tensor([value for row in rows for value in row.weights], dtype=torch.float32),
        advantages=torch.tensor([value for row in advantages for value in row], dtype=torch.float32),
        sampler_logprobs=torch.tensor(
            [unknown if value is None else value for row in logprobs for value in row], dtype=torch.float32
        ),
        temperatures=torch.tensor([row.temperature for row in rows for _ in row.completion_ids], dtype=torch.float32),
        written=torch.tensor([value for row in rows for value in _written(row)], dtype=torch.bool),
        old_logprobs=torch.tensor([value for row in old for value in row], dtype=torch.float32),
        rows=torch.tensor([number for number, row in enumerate(rows) for _ in row.completion_ids], dtype=torch.long),
    )
