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

    A summary that the harness asked for counts as used as long as its agent said nothing more; then as used where one
    of the agent's later requests holds it.
    """
    texts: dict[str, str] = {}
    kinds: dict[str, tuple[CallKind, str | None]] = {}
    for index, call in enumerate(calls):
        later = [c for c in calls[index + 1 :] if c.agent_id == call.agent_id and c.kind in ("agent", "compaction")]
        asked = call.kind == "compaction"
        afresh = [one for one in later if one.fork_reason is not None]
        if call.status != "complete" or not later or not (asked or afresh):
            continue
        if not asked and (call.kind != "agent" or len(_summary_in(call)) < _SHORTEST_SUMMARY):
            continue
        holders = later if asked else [one for one in afresh if not _holds_call(one, call)]
        used = any(_summary_in(call) in texts.setdefault(one.call_id, _text_of(one)) for one in holders)
        if asked and not used:
            kinds[call.call_id] = ("auxiliary", "summary_not_used")
        elif not asked and used:
            kinds[call.call_id] = ("compaction", "summary_used")
    return kinds


def _holds_call(later: ModelCall, call: ModelCall) -> bool:
    """Whether `later` still has the answer as a turn of its own, which is a history and no summary of it."""
    return any(text.strip() == call.text.strip() for role, text in _turns(later) if role == "assistant")


def _summary_in(call: ModelCall) -> str:
    marked = _SUMMARY.search(call.text)
    return (marked[1] if marked else call.text).strip()


def _text_of(call: ModelCall) -> str:
    return "\n".join(text for _, text in _turns(call))


def _turns(call: ModelCall) -> list[tuple[str, str]]:
    try:
        request = recorded_request(call.dialect, call.request)
    except RequestError:  # recorded by a release that read more than this one does
        return []
    return [(message.role, message.content) for message in request.messages]
