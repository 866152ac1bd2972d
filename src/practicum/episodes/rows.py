"""Stored calls of a session to append-only episodes, and episodes to training rows.

Every token that the policy chose is trained once; one that a constraint imposed on it never is. Where two calls
continue the same answer, the first goes on with the episode and the second opens one that shares the ids and masks
them. Every call that trains nothing is named with its reason.

Invariants: ids, mask, logprobs and versions align; a prompt token is never trained; a sequence that is too long keeps
its beginning or is refused, and is never cut from the left. It must not know the store or the trainer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from practicum.episodes.settle import settle_kinds
from practicum.types.calls import ModelCall
from practicum.types.episodes import Episode, Rows, Span, TrainingRow

Value = TypeVar("Value")
NO_CALL = "no model call was seen in this session: is the harness using this server's address, and did it accept it?"


def training_rows(calls: Sequence[ModelCall], *, max_length: int | None = None) -> Rows:
    """Rows of one session's calls, in order of arrival.

    Args:
        calls: all calls of the session.
        max_length: most ids a row may have; the end of a longer episode is left off.
    """
    settled = settle_kinds(calls)
    built = episodes(settled)
    refusals = {call.call_id: reason for call in settled if (reason := call.untrainable_reason) is not None}
    rows: list[TrainingRow] = []
    for episode in built:
        made, lost = _rows_of(episode, max_length)
        rows.extend(made)
        refusals.update(lost)
    counts = Counter(refusals.values())
    if not calls:
        counts[NO_CALL] += 1
    return Rows(rows=tuple(rows), episodes=tuple(built), refusals=refusals, counts=dict(counts))


def episodes(calls: Sequence[ModelCall]) -> list[Episode]:
    """Append-only episodes of calls in order of arrival, kinds settled. A call without ids is in none of them."""
    served = {call.call_id: call for call in calls if call.prompt_ids and call.completion_ids}
    chains: list[list[ModelCall]] = []
    end_of: dict[str, int] = {}
    for call in served.values():
        parent = served.get(call.parent_call_id or "")
        index = end_of.pop(parent.call_id, None) if parent is not None and _extends(call, parent) else None
        if index is None:
            index = len(chains)
            chains.append([])
        chains[index].append(call)
        end_of[call.call_id] = index
    built: list[Episode] = []
    for chain in chains:
        first = chain[0]
        taken = any(episode.episode_id == first.episode_id for episode in built)
        built.append(
            _episode(
                chain,
                episode_id=f"{first.episode_id}/{first.call_id}" if taken else first.episode_id,
                fork_reason=first.fork_reason or _branch_reason(first, served.get(first.parent_call_id or "")),
            )
        )
    return built


def _branch_reason(call: ModelCall, parent: ModelCall | None) -> str | None:
    if parent is None:
        return None
    return "branched" if _extends(call, parent) else "ids_do_not_extend"


def _extends(call: ModelCall, parent: ModelCall) -> bool:
    before = parent.prompt_ids + parent.completion_ids
    return call.prompt_ids[: len(before)] == before


def _episode(chain: Sequence[ModelCall], *, episode_id: str, fork_reason: str | None) -> Episode:
    first, last = chain[0], chain[-1]
    ids = last.prompt_ids + last.completion_ids
    mask = [False] * len(ids)
    logprobs: list[float | None] = [None] * len(ids)
    versions: list[int | None] = [None] * len(ids)
    spans: list[Span] = []
    for call in chain:
        start, stop = len(call.prompt_ids), len(call.prompt_ids) + len(call.completion_ids)
        trains = call.untrainable_reason is None
        if trains:
            chosen = [not imposed for imposed in call.imposed]
            mask[start:stop] = chosen
            logprobs[start:stop] = _where(chosen, call.logprobs)
            versions[start:stop] = _where(chosen, call.versions)
        temperature = call.temperature if call.temperature > 0 else 1.0
        spans.append(Span(call_id=call.call_id, start=start, stop=stop, temperature=temperature, trains=trains))
    return Episode(
        episode_id=episode_id,
        session_id=first.session_id,
        ids=ids,
        mask=tuple(mask),
        logprobs=tuple(logprobs),
        versions=tuple(versions),
        spans=tuple(spans),
        forked_from=first.parent_call_id,
        fork_reason=fork_reason,
    )


def _where(mask: Sequence[bool], values: Sequence[Value]) -> list[Value | None]:
    return [value if kept else None for kept, value in zip(mask, values, strict=True)]


def _rows_of(episode: Episode, max_length: int | None) -> tuple[list[TrainingRow], dict[str, str]]:
    """Rows of one episode, one for each temperature, and the calls that the length limit cut off."""
    limit = len(episode.ids) if max_length is None else min(max_length, len(episode.ids))
    spans = [span for span in episode.spans if span.trains]
    lost = {
        span.call_id: f"its tokens lie beyond the training length of {max_length}"
        for span in spans
        if span.start >= limit
    }
    kept = [span for span in spans if span.start < limit]
    temperatures = sorted({span.temperature for span in kept})
    return [_row(episode, kept, temperature, limit) for temperature in temperatures], lost


def _row(episode: Episode, kept: Sequence[Span], temperature: float, limit: int) -> TrainingRow:
    own = [span for span in kept if span.temperature == temperature]
    start, stop = own[0].start, min(own[-1].stop, limit)
    mine = [False] * (stop - start)
    for span in own:
        for position in range(span.start, min(span.stop, limit)):
            mine[position - start] = episode.mask[position]
    suffix = "" if len({span.temperature for span in kept}) == 1 else f"@{temperature:g}"
    return TrainingRow(
        row_id=f"{episode.episode_id}{suffix}",
        episode_id=episode.episode_id,
        session_id=episode.session_id,
        prompt_ids=episode.ids[:start],
        completion_ids=episode.ids[start:stop],
        mask=tuple(mine),
        logprobs=tuple(
            value if own_token else None for value, own_token in zip(episode.logprobs[start:stop], mine, strict=True)
        ),
        versions=episode.versions[start:stop],
        temperature=temperature,
        call_ids=tuple(span.call_id for span in own),
    )
