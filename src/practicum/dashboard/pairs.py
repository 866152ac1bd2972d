"""Held-out answers before and after: what changed in each, and which to show first. What got worse is always shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from practicum.dashboard.records import Pair, PairKind

MOST_SHOWN = 12
# Room that is kept for improvements when most answers got worse.
_LEAST_NEWLY = 3


def pair_from(row: Mapping[str, Any]) -> Pair:
    """The pair that an examination recorded; a check counts as met from 0.5."""
    before, after = dict(row.get("verdicts_before") or {}), dict(row.get("verdicts_after") or {})
    both = [name for name in before if name in after]
    gained = tuple(name for name in both if before[name] < 0.5 <= after[name])
    lost = tuple(name for name in both if after[name] < 0.5 <= before[name])
    return Pair(
        call_id=str(row.get("call_id", "")),
        question=str(row.get("question", "")),
        asked=str(row.get("asked", "")),
        before=str(row.get("before", "")),
        after=str(row.get("after", "")),
        verdicts_before=before,
        verdicts_after=after,
        kind=_kind(before, after, gained, lost),
        gained=gained,
        lost=lost,
    )


def _kind(
    before: Mapping[str, float], after: Mapping[str, float], gained: Sequence[str], lost: Sequence[str]
) -> PairKind:
    if not before and not after:
        return "ungraded"
    met_before, met_after = _all_met(before), _all_met(after)
    if lost or (met_before and not met_after):
        return "worse"
    if met_after:
        return "kept" if met_before else "newly"
    return "better" if gained else "still"


def _all_met(verdicts: Mapping[str, float]) -> bool:
    return bool(verdicts) and all(value >= 0.5 for value in verdicts.values())


def choose(pairs: Sequence[Pair], most: int = MOST_SHOWN) -> tuple[int, ...]:
    """Indices to show: newly followed, then worse, then the rest, each in order and commented ones first.

    Worse ones have first claim on the room, all but `_LEAST_NEWLY` places of it.
    """
    found: dict[PairKind, list[int]] = {}
    for index in sorted(range(len(pairs)), key=lambda i: (not pairs[i].asked.strip(), i)):
        found.setdefault(pairs[index].kind, []).append(index)
    newly, worse = found.get("newly", []), found.get("worse", [])
    worse = worse[: most - min(_LEAST_NEWLY, len(newly))]
    newly = newly[: most - len(worse)]
    rest = [index for kind in ("better", "still", "kept", "ungraded") for index in found.get(kind, [])]
    return tuple([*newly, *worse, *rest][:most])
