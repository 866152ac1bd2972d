"""Logprobs of given completions, in batches. What completions or their prompts begin with alike is computed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from practicum.engines.embedded.batches import pairs_of, targets_of
from practicum.engines.embedded.body import Body, body_of
from practicum.engines.embedded.layout import layout_of, micro_batches
from practicum.engines.embedded.objectives import logprobs_of
from practicum.types.local import ScoreRequest
from practicum.types.training import Datum

_TOKENS = 1024


@torch.no_grad()
def score(model: Any, requests: Sequence[ScoreRequest]) -> Iterator[dict[int, tuple[float, ...]]]:
    """Raw tempered logprobs [T] by index of the request, a batch at a time."""
    body = body_of(model)
    for batch in micro_batches([_row(index, request) for index, request in enumerate(requests)], _TOKENS):
        yield _scored(body, batch)


def _row(index: int, request: ScoreRequest) -> Datum:
    return Datum(
        row_id=str(index),
        prompt_ids=request.prompt_ids,
        completion_ids=request.completion_ids,
        weights=(1.0,) * len(request.completion_ids),
        temperature=request.temperature,
    )


def _scored(body: Body, rows: Sequence[Datum]) -> dict[int, tuple[float, ...]]:
    layout = layout_of(pairs_of(rows), shared=body.trees)
    values = logprobs_of(body.head, body.hidden(layout), targets_of(rows)).tolist() if len(layout) else []
    found = {}
    for row in rows:
        length = len(row.completion_ids)
        found[int(row.row_id)], values = tuple(values[:length]), values[length:]
    return found
