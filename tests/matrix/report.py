"""What became of one harness's calls, from the record alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from practicum.episodes.rows import training_rows
from practicum.episodes.settle import settle_kinds
from practicum.episodes.side_calls import REASONS
from practicum.types.calls import ModelCall


def session_report(calls: Sequence[ModelCall]) -> dict[str, Any]:
    """Figures of one session. `merge_ratio` is trained calls a row, `seen_as` who the record says sent the calls.

    `retokenised` must be 0, and `without_tools` (calls that offer no tool, as a harness's agent always does, and still
    count as the agent's own) empty.
    """
    settled = settle_kinds(calls)
    made = training_rows(settled)
    trained = sum(len(row.call_ids) for row in made.rows)
    return {
        "seen_as": sorted({call.harness for call in settled if call.harness}),
        "calls": len(calls),
        "by_kind": dict(Counter(call.kind for call in settled)),
        "side_calls": dict(Counter(call.kind_reason for call in settled if call.kind_reason in REASONS)),
        "unfinished": [f"{call.status}: {call.error}" for call in calls if call.status != "complete"],
        "sessions": len({call.session_id for call in calls}),
        "episodes": sum(episode.sampled_tokens > 0 for episode in made.episodes),
        "rows": len(made.rows),
        "merge_ratio": round(trained / len(made.rows), 2) if made.rows else 0.0,
        "fork_reasons": dict(Counter(episode.fork_reason for episode in made.episodes if episode.sampled_tokens)),
        "refused": dict(made.counts),
        "trained_tokens": sum(row.trained_tokens for row in made.rows),
        "retokenised": retokenised(settled),
        "without_tools": [
            str(call.request)[:200] for call in settled if call.kind == "agent" and not call.request.get("tools")
        ],
    }


def retokenised(calls: Sequence[ModelCall]) -> int:
    """Sampled tokens that training or a later prompt of the same episode would see as other ids than were sampled."""
    by_id = {call.call_id: call for call in calls}
    wrong = 0
    for call in calls:
        parent = by_id.get(call.parent_call_id or "")
        if parent is not None:
            served = parent.prompt_ids + parent.completion_ids
            wrong += sum(one != other for one, other in zip(served, call.prompt_ids, strict=False))
            wrong += max(0, len(served) - len(call.prompt_ids))
    for row in training_rows(calls).rows:
        sampled = [token for call_id in row.call_ids for token in by_id[call_id].completion_ids]
        trained = [token for token, own in zip(row.completion_ids, row.mask, strict=True) if own]
        wrong += sum(one != other for one, other in zip(sampled, trained, strict=False))
        wrong += abs(len(sampled) - len(trained))
    return wrong
