"""Which served answer a request continues, or why it continues none.

The longest prefix of the request that ends in an answer we served to the same principal is the parent; its ids are
reused and only the rest is rendered. An answer that did not reach the caller whole cannot be a parent. Where nothing
is found, the session's last call says why the episode forks.

Invariants: ids that were served are never rendered again; a fork always has a reason; nobody extends what was served
to somebody else. It must not know wire formats or the store; look-ups are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from practicum.episodes.matching import (
    ReasoningChange,
    canonical_message,
    prefix_hashes,
    raw_prompt_hash,
    tools_hash,
)
from practicum.types.calls import CallKind, ModelCall
from practicum.types.messages import Message, ToolSpec

ForkReason = Literal[
    "new_conversation",
    "system_changed",
    "tools_changed",
    "options_changed",
    "assistant_rewritten",
    "reasoning_dropped",
    "reasoning_rewritten",
    "assistant_not_served",
    "history_shortened",
    "history_rewritten",
    "parent_incomplete",
    "template_cannot_extend",
    "raw_prompt",
]
FORK_MEANING: dict[ForkReason, str] = {
    "new_conversation": "nothing in the request was served before",
    "system_changed": "the system message differs from the one in the session's last call",
    "tools_changed": "other tools are on offer than in the session's last call",
    "options_changed": "the request sets switches of the chat template (reasoning, say) otherwise than the last call",
    "reasoning_dropped": "the caller left out the reasoning of an answer that we served, though it can send it back",
    "reasoning_rewritten": "the caller changed the reasoning of an answer that we served",
    "assistant_rewritten": "the caller changed an answer that we served",
    "assistant_not_served": "the history holds an answer that we did not serve",
    "history_shortened": "the caller dropped messages that the session's last call had",
    "history_rewritten": "the caller changed a message of its own that the session's last call had",
    "parent_incomplete": "the answer that the request continues did not reach the caller whole",
    "template_cannot_extend": "the chat template gives no tail behind a served answer",
    "raw_prompt": "the prompt came as text or ids without messages, so it continues no conversation",
}


# Of so many calls that gave the same answer the right one is looked for: siblings may differ in their reasoning.
_MOST_SIBLINGS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The served call that a request continues, and the messages behind its answer."""

    call: ModelCall
    rest: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """The session's last call, with its conversation in canonical form."""

    call: ModelCall
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How a request stands to what was served before. `prompt_hash` names its conversation."""

    parent: Parent | None
    fork_reason: ForkReason | None
    prompt_hash: str


def find_parent(
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    find: Callable[[str], Sequence[ModelCall]],
    *,
    session_id: str | None = None,
    agent_id: str | None = None,
    options: Mapping[str, Any] = {},
    accept: Callable[[ModelCall, Sequence[Message]], bool] = lambda call, prefix: True,
    hashes: Sequence[str] | None = None,
) -> Parent | None:
    """The call that served the longest prefix. `find` gives the same principal's calls for a history hash.

    Calls of `session_id` come before all others, those of the agent first, then newer ones. `accept` has the last word
    on a call and the prefix that it served; `options` are the template's variables as far as it reads them. `hashes`
    are the conversation's `prefix_hashes`, if at hand.
    """
    hashes = hashes or prefix_hashes(messages, tools, options)
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role != "assistant":
            continue
        served = [call for call in find(hashes[index + 1]) if can_be_extended(call)]
        own = [call for call in served if call.session_id == session_id] or served
        for call in sorted(own, key=lambda call: call.agent_id != agent_id)[:_MOST_SIBLINGS]:
            if accept(call, messages[: index + 1]):
                return Parent(call=call, rest=tuple(messages[index + 1 :]))
    return None


def can_be_extended(call: ModelCall) -> bool:
    """Whether the caller got this answer whole and its ids are on record."""
    return call.status == "complete" and bool(call.prompt_ids) and bool(call.completion_ids)


def link(
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    parent: Parent | None,
    earlier: Earlier | None,
    *,
    options: Mapping[str, Any] = {},
    changed: ReasoningChange | None = None,
    hashes: Sequence[str] | None = None,
) -> Link:
    """Join a request to its parent, or name the reason why its episode forks.

    `changed` is what the caller did to the reasoning of an answer that would have been the parent otherwise; `hashes`
    as in `find_parent`.
    """
    prompt_hash = (hashes or prefix_hashes(messages, tools, options))[-1]
    if changed is not None:
        return Link(parent=parent, fork_reason=changed, prompt_hash=prompt_hash)
    clean = parent is not None and not any(message.role == "assistant" for message in parent.rest)
    if clean or (earlier is not None and earlier.call.prompt_hash == prompt_hash):
        same = None if clean else _as_before(parent, earlier)
        return Link(parent=parent, fork_reason=same, prompt_hash=prompt_hash)
    return Link(parent=parent, fork_reason=fork_reason(messages, tools, earlier, options), prompt_hash=prompt_hash)


def raw_link(prompt_ids: Sequence[int]) -> Link:
    """The link of a prompt that is no conversation: it joins nothing, and repeats of it share their hash."""
    return Link(parent=None, fork_reason="raw_prompt", prompt_hash=raw_prompt_hash(prompt_ids))


def fork_reason(
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    earlier: Earlier | None,
    options: Mapping[str, Any] = {},
) -> ForkReason:
    """Compare a request that does not simply continue an answer with the session's last call."""
    not_served: ForkReason = (
        "assistant_not_served" if any(m.role == "assistant" for m in messages) else "new_conversation"
    )
    if earlier is None:
        return not_served
    ours = [canonical_message(message) for message in messages]
    theirs = [canonical_message(message) for message in earlier.messages]
    if _common(_spoken(ours), _spoken(theirs)) == 0:
        return "history_rewritten" if _share_an_answer(ours, theirs) else not_served
    if _leading_system(ours) != _leading_system(theirs):
        return "system_changed"
    if tools_hash(tools) != tools_hash(earlier.tools):
        return "tools_changed"
    if dict(options) != dict(earlier.options):
        return "options_changed"
    same = _common(ours, theirs)
    if same == len(ours):
        return "history_shortened"
    if same == len(theirs):
        return _behind_last_prompt(messages[same], earlier.call)
    return "assistant_rewritten" if theirs[same][0] == "assistant" else "history_rewritten"


def call_kind(earlier: ModelCall | None, prompt_hash: str) -> tuple[CallKind, str | None]:
    """Kind of a turn when it comes in, and the reason; `settle_kinds` in `rows.py` corrects it by what came later.

    `earlier` is the last turn of the same agent in the session. A prompt that repeats it is another sample while that
    answer is under way, and a retry where it was delivered; where it was not, the new answer is the one that counts.
    """
    if earlier is None or earlier.prompt_hash != prompt_hash:
        return "agent", None
    if earlier.status == "open":
        return "best_of_n", "same_prompt_at_once"
    return ("retry", "same_prompt_again") if earlier.status == "complete" else ("agent", None)


def _as_before(parent: Parent | None, earlier: Earlier | None) -> ForkReason | None:
    """Why a repeated prompt forks: as it did the first time."""
    if parent is not None:
        return None
    before = earlier.call.fork_reason if earlier else None
    return next((reason for reason in FORK_MEANING if reason == before), "new_conversation")


def _behind_last_prompt(next_message: Message, call: ModelCall) -> ForkReason:
    if next_message.role != "assistant":
        return "history_rewritten"
    return "assistant_rewritten" if call.status == "complete" else "parent_incomplete"


def _spoken(messages: list[list[object]]) -> list[list[object]]:
    return [message for message in messages if message[0] != "system"]


def _share_an_answer(ours: list[list[object]], theirs: list[list[object]]) -> bool:
    """Whether an answer of the last call's history is still there, though the conversation begins otherwise."""
    return any(message[0] == "assistant" and message in theirs for message in ours)


def _leading_system(messages: list[list[object]]) -> list[object] | None:
    return messages[0] if messages and messages[0][0] == "system" else None


def _common(left: list[list[object]], right: list[list[object]]) -> int:
    length = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        length += 1
    return length
