"""One step of sampling: logits to a token and its two logprobs, row by row independent.

Order: temperature, then the constraint's mask, then top-k, then top-p over what top-k left (each over what the one
before left, renormalised; top-p keeps the smallest set that reaches the mass), then min-p: what has at least that share
of the most probable token's mass. Rows without a mask never meet one.
The token is drawn by inverting the cumulative distribution at a number in [0, 1) that comes from the request's seed and
the token's index alone, so neighbours in the batch cannot change it; it also spares 49 k random numbers a row.
Legend: N rows, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from practicum.types.tokens import SamplingParams

_GUESS = 256


@dataclass(frozen=True, slots=True)
class Drawn:
    """A sampled token, its raw tempered logprob, and the one renormalised over what mask and truncation left."""

    token: int
    logprob: float
    sampled_logprob: float


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1), 53 bits, from a request's seed and the token's index."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


@torch.no_grad()
def draw(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    uniforms: Sequence[float],
    masks: Sequence[torch.Tensor | None] = (),
) -> list[Drawn | None]:
    """Sample a token a row from `logits: [N, V]`. None for a row whose logits hold a NaN or no finite value.

    `masks`: for each row [V], true where a token is allowed, or None where all are; empty where no row has one.
    """
    temperatures = torch.tensor([each.scoring_temperature for each in params], dtype=torch.float32)
    logprobs = torch.log_softmax(logits.float() / temperatures[:, None], dim=-1)
    masked = {row: mask for row, mask in enumerate(masks) if mask is not None}
    left = _masked(logprobs, masked) if masked else logprobs
    # One NaN or a row without a finite value makes the whole row NaN; amax passes it on.
    healthy = (~left.amax(-1).isnan()).tolist()
    masses = left.exp()
    log_kept = [0.0] * len(params)
    for row, each in enumerate(params):
        if healthy[row] and each.temperature > 0 and (each.top_k > 0 or each.top_p < 1 or each.min_p > 0):
            kept = _kept(masses[row], each)
            total = float(masses[row, kept].sum(dtype=torch.float64))
            log_kept[row] = math.log(total)
            truncated = torch.zeros_like(masses[row])
            truncated[kept] = masses[row, kept]
            masses[row] = truncated
    tokens = _invert(masses, uniforms)
    for row, each in enumerate(params):
        if each.temperature <= 0:
            tokens[row] = (left if row in masked else logits)[row].argmax()
    raw = logprobs.gather(1, tokens[:, None]).squeeze(1).tolist()
    sampled = left.gather(1, tokens[:, None]).squeeze(1).tolist() if masked else raw
    return [
        Drawn(token, value, min(of_left - kept_mass, 0.0)) if fine else None
        for token, value, of_left, kept_mass, fine in zip(tokens.tolist(), raw, sampled, log_kept, healthy, strict=True)
    ]


def _masked(logprobs: torch.Tensor, masks: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """`logprobs: [N, V]` with the masked rows renormalised over what is allowed, in logs: it may be very little."""
    left = logprobs.clone()
    for row, mask in masks.items():
        left[row] = torch.log_softmax(logprobs[row].masked_fill(~mask, -math.inf), dim=-1)
    return left


def _invert(masses: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
    """First index whose cumulative mass exceeds the uniform's share of the total: [N]. Never one of mass 0."""
    cumulative = masses.double().cumsum(-1)
    totals = cumulative[:, -1:]
    targets = torch.tensor(uniforms, dtype=torch.float64)[:, None] * totals
    targets = torch.minimum(targets, torch.nextafter(totals, torch.zeros_like(totals)))
    return torch.searchsorted(cumulative, targets, right=True).squeeze(1).clamp(max=masses.shape[1] - 1)


def _kept(masses: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Ids that top-k, top-p and min-p leave, most probable first. Sorts the whole vocabulary only if its head does not
    hold them all.
    """
    values, ids = masses.topk(min(params.top_k or _GUESS, len(masses)))
    goal = params.top_p * float((values if params.top_k else masses).sum(dtype=torch.float64))
    floor = params.min_p * float(values[0])
    reached = params.top_p < 1 and float(values.sum(dtype=torch.float64)) >= goal
    if not (params.top_k or reached or float(values[-1]) < floor):
        values, ids = masses.sort(descending=True)
    count = len(ids)
    if params.top_p < 1:
        before = values.double().cumsum(-1) - values.double()
        count = max(1, int((before < goal).sum()))
    return ids[:count][values[:count] >= floor]
