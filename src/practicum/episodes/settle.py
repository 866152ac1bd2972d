"""Kinds of a session's calls once the rest of the session is known.

What a call is shows only by what came later: of several answers to one prompt, the one that the conversation went on
from was consumed; a request for a summary was one where the history begins afresh with its answer. Until that is known,
kinds stand as they were recorded. Pure; it must not know the store.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from practicum.dialects.registry import recorded_request
from practicum.errors import RequestError
from practicum.types.calls import CallKind, ModelCall

_SUMMARY = re.compile(r"<summary>(.*?)</summary>", re.DOTALL)
# An answer that no rule knows as a summary must be long enough not to be repeated by chance.
_SHORTEST_SUMMARY = 40

_Kinds = Mapping[str, tuple[CallKind, str | None]]


def settle_kinds(calls: Sequence[ModelCall]) -> list[ModelCall]:
    """Calls of one session, in order of arrival, with their kinds as the rest of the session shows them."""
    kinds = {**_siblings(calls), **_summaries(calls)}
    settled = []
    for call in calls:
        kind, reason = kinds.get(call.call_id, (call.kind, call.kind_reason))
        settled.append(replace(call, kind=kind, kind_reason=reason))
    return settled


def _siblings(calls: Sequence[ModelCall]) -> _Kinds:
    """Of several answers of one agent to one prompt, those that were consumed are its own, and the others are not."""
    continued = {call.parent_call_id for call in calls if call.parent_call_id}
    siblings: dict[tuple[str | None, str], list[ModelCall]] = defaultdict(list)
    for call in calls:
        if call.prompt_hash and call.kind in ("agent", "retry", "best_of_n"):
            siblings[call.agent_id, call.prompt_hash].append(call)
    kinds: dict[str, tuple[CallKind, str | None]] = {}
    for group in siblings.values():
        if len(group) < 2 or not any(call.call_id in continued for call in group):
            continue
        for call in group:
            unused: CallKind = "best_of_n" if call.kind == "best_of_n" else "retry"
            used = call.call_id in continued
            if used or call.status == "complete":
                kinds[call.call_id] = ("agent", None) if used else (unused, "answer_not_used")
    return kinds


def _summaries(calls: Sequence[ModelCall]) -> _Kinds:
    """Which calls made a summary that took the place of a history, and which summaries came to nothing.

    A summary that the harness asked for came to nothing where its agent went on and no later request holds it, unless
    the history did begin afresh and no other summary explains that: harnesses may rewrite what they were given.
    """
    read = _Requests()
    kinds: dict[str, tuple[CallKind, str | None]] = {}
    begun_by: set[str] = set()  # requests that a later summary explains; the calls are gone through backwards
    for index in range(len(calls) - 1, -1, -1):
        call = calls[index]
        later = [c for c in calls[index + 1 :] if c.agent_id == call.agent_id and c.kind in ("agent", "compaction")]
        afresh = [one for one in later if one.fork_reason is not None]
        asked = call.kind == "compaction"
        if call.status != "complete" or not later or not (asked or afresh):
            continue
        if not asked and (call.kind != "agent" or len(_summary_in(call)) < _SHORTEST_SUMMARY):
            continue
        holds = [one.call_id for one in (later if asked else afresh) if read.holds_summary(one, call)]
        unexplained = [one for one in afresh if one.call_id not in begun_by]
        if holds:
            begun_by.update(one.call_id for one in afresh)
            if not asked:
                kinds[call.call_id] = ("compaction", "summary_used")
        elif asked and not unexplained:
            kinds[call.call_id] = ("auxiliary", "summary_not_used")
    return kinds


class _Requests:
    """Conversations of recorded requests, read once."""

    def __init__(self) -> None:
        self._turns: dict[str, list[tuple[str, str]]] = {}

    def holds_summary(self, later: ModelCall, call: ModelCall) -> bool:
        """Whether `later` holds the call's summary, other than as the turn that it was."""
        if later.call_id not in self._turns:
            self._turns[later.call_id] = _turns(later)
        turns = self._turns[later.call_id]
        if call.kind != "compaction" and any(
            role == "assistant" and text.strip() == call.text.strip() for role, text in turns
        ):
            return False
        return any(_summary_in(call) in text for _, text in turns)


def _summary_in(call: ModelCall) -> str:
    marked = _SUMMARY.search(call.text)
    return (marked[1] if marked else call.text).strip()


def _turns(call: ModelCall) -> list[tuple[str, str]]:
    try:
        request = recorded_request(call.dialect, call.request)
    except RequestError:  # recorded by a release that read more than this one does
        return []
    return [(message.role, message.content) for message in request.messages]
