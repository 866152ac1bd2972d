"""Logprobs of given completions, in batches. Completions that share a prompt pay for it once.

Legend: B rows, P prompt tokens, T completion tokens padded to the longest, G prompts of one length, K completions each.
Padding stands on the right, where causal attention of real tokens cannot see it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from practicum.algorithms import losses
from practicum.engines.embedded.batches import micro_batches, targets_of, tokens_of
from practicum.types.local import ScoreRequest
from practicum.types.training import Datum

_TOKENS = 1024
_ROWS = 32


@torch.no_grad()
def score(model: Any, requests: Sequence[ScoreRequest]) -> Iterator[dict[int, tuple[float, ...]]]:
    """Raw tempered logprobs [T] by index of the request, a batch at a time."""
    by_prompt: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, request in enumerate(requests):
        by_prompt[request.prompt_ids].append(index)
    alone: list[int] = []
    alike: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
    for prompt, group in by_prompt.items():
        if len(group) == 1:
            alone += group
        else:
            alike[len(prompt), len(group)].append(group)
    for (_, size), groups in alike.items():
        step = max(1, _ROWS // size)
        for start in range(0, len(groups), step):
            yield _sharing(model, groups[start : start + step], requests)
    rows = [_row(index, requests[index]) for index in alone]
    for batch in micro_batches(rows, _TOKENS):
        yield _apart(model, batch)


def _row(index: int, request: ScoreRequest) -> Datum:
    return Datum(
        row_id=str(index),
        prompt_ids=request.prompt_ids,
        completion_ids=request.completion_ids,
        weights=(1.0,) * len(request.completion_ids),
        temperature=request.temperature,
    )


def _apart(model: Any, batch: Sequence[Datum]) -> dict[int, tuple[float, ...]]:
    tokens, targets = tokens_of(batch), targets_of(batch)
    logits = tokens.forward(model)
    values = losses.token_logprobs(logits / targets.temperatures[:, None], targets.ids).tolist()
    found = {}
    for row in batch:
        length = len(row.completion_ids)
        found[int(row.row_id)], values = tuple(values[:length]), values[length:]
    return found


def _sharing(
    model: Any, groups: Sequence[Sequence[int]], requests: Sequence[ScoreRequest]
) -> dict[int, tuple[float, ...]]:
    """`groups`: G lists of K indices, the members of each list having one prompt, all prompts P long."""
    prompts_GP = torch.tensor([requests[group[0]].prompt_ids for group in groups])
    size, length = len(groups[0]), prompts_GP.shape[1]
    first = model(input_ids=prompts_GP, use_cache=True, logits_to_keep=1)
    order = [index for group in groups for index in group]
    width = max(len(requests[index].completion_ids) for index in order)
    ids_BT = torch.zeros(len(order), width, dtype=torch.long)
    for row, index in enumerate(order):
        ids_BT[row, : len(requests[index].completion_ids)] = torch.tensor(requests[index].completion_ids)
    logits_BTV = first.logits.repeat_interleave(size, dim=0)
    if width > 1:
        cache = first.cache
        cache.batch_repeat_interleave(size)
        positions = torch.arange(length, length + width - 1)[None].expand(len(order), -1)
        rest = model(input_ids=ids_BT[:, :-1], position_ids=positions, cache=cache, use_cache=True)
        logits_BTV = torch.cat([logits_BTV, rest.logits], dim=1)
    temperatures = torch.tensor([requests[index].temperature for index in order])
    scaled = (logits_BTV / temperatures[:, None, None]).flatten(0, 1)
    logprobs_BT = losses.token_logprobs(scaled, ids_BT.flatten()).view_as(ids_BT)
    return {
        index: tuple(logprobs_BT[row, : len(requests[index].completion_ids)].tolist())
        for row, index in enumerate(order)
    }
