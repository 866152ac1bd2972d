"""What became of one harness's calls, from the record alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from practicum.episodes.rows import settle_kinds, training_rows
from practicum.types.calls import ModelCall


def session_report(calls: Sequence[ModelCall]) -> dict[str, Any]:
    """Figures of one session. `merge_ratio` is calls that train a row; `retokenised` must be 0."""
    made = training_rows(calls)
    settled = settle_kinds(calls)
    trained = sum(len(row.call_ids) for row in made.rows)
    return {
        "calls": len(calls),
        "by_kind": dict(Counter(call.kind for call in settled)),
        "unfinished": [f"{call.status}: {call.error}" for call in calls if call.status != "complete"],
        "sessions": len({call.session_id for call in calls}),
        "episodes": len(made.episodes),
        "rows": len(made.rows),
        "merge_ratio": round(trained / len(made.rows), 2) if made.rows else 0.0,
        "fork_reasons": dict(Counter(call.fork_reason for call in calls if call.fork_reason)),
        "refused": dict(made.counts),
        "trained_tokens": sum(row.trained_tokens for row in made.rows),
        "retokenised": retokenised(calls),
        "without_tools": [_opening(call) for call in settled if call.kind == "agent" and not call.request.get("tools")],
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


def _opening(call: ModelCall) -> str:
    return str(call.request)[:200]
