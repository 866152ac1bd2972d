"""The readiness report: what is served, and what is wrong. It names codes; paths and messages are for the log."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from practicum.gateway.chat import ChatParts
from practicum.store import Store


def readiness(parts: ChatParts, store: Store) -> tuple[int, dict[str, Any]]:
    """HTTP status and report: 200 `ready` or `degraded`, 503 `unready`.

    Degraded serves, but something needs a person: records are lost, or the live version could not be loaded.
    """
    swapper, engine, capture, kept = parts.swapper, parts.watch.health(), parts.recorder.health(), store.health()
    problems = [swapper.alarm] if swapper.alarm else []
    if capture.lost > capture.recovered:
        problems.append(f"{capture.lost - capture.recovered} records were lost")
    if kept.lost_jobs or kept.refused_jobs:
        problems.append("the store lost or refused writes")
    if engine.stalled:
        problems.append("the engine gives no token")
    unready = swapper.serving is None or engine.stalled
    report = {
        "status": "unready" if unready else "degraded" if problems else "ready",
        "problems": problems,
        "serving_version": None if swapper.serving is None else swapper.serving.version,
        "live_version": swapper.wanted,
        "engine": asdict(engine),
        "capture": _without_messages(asdict(capture)),
        "store": _without_messages(asdict(kept)),
    }
    return 503 if unready else 200, report


def _without_messages(counters: dict[str, Any]) -> dict[str, Any]:
    counters["failed"] = counters.pop("last_error") is not None
    return counters
