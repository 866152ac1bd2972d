"""Which served answer a request continues, or why it continues none.

The longest prefix of the request that ends in an answer we served to the same principal is the parent; its ids are
reused and only the rest is rendered. An answer that did not reach the caller whole cannot be a parent. Where nothing
is found, the session's last call says why the episode forks.

Invariants: ids that were served are never rendered again; a fork always has a reason; nobody extends what was served
to somebody else. It must not know wire formats or the store; look-ups are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from practicum.episodes.matching import canonical_message, prefix_hashes, raw_prompt_hash, tools_hash
from practicum.types.calls import CallKind, ModelCall
from practicum.types.messages import Message, ToolSpec

ForkReason = Literal[
    "new_conversation",
    "system_changed",
    "tools_changed",
    "assistant_rewritten",
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
    "assistant_rewritten": "the caller changed an answer that we served",
    "assistant_not_served": "the history holds an answer that we did not serve",
    "history_shortened": "the caller dropped messages that the session's last call had",
    "history_rewritten": "the caller changed a message of its own that the session's last call had",
    "parent_incomplete": "the answer that the request continues did not reach the caller whole",
    "template_cannot_extend": "the chat template gives no tail behind a served answer",
    "raw_prompt": "the prompt came as text or ids without messages, so it continues no conversation",
}


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
    hashes: Sequence[str] | None = None,
) -> Parent | None:
    """The call that served the longest prefix. `find` gives the same principal's calls for a history hash.

    Calls of `session_id` come first, then newer ones. `hashes` are the conversation's `prefix_hashes`, if at hand.
    """
    hashes = hashes or prefix_hashes(messages, tools)
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role != "assistant":
            continue
        served = [call for call in find(hashes[index + 1]) if can_be_extended(call)]
        if served:
            call = next((call for call in served if call.session_id == session_id), served[0])
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
    hashes: Sequence[str] | None = None,
) -> Link:
    """Join a request to its parent, or name the reason why its episode forks. `hashes` as in `find_parent`."""
    prompt_hash = (hashes or prefix_hashes(messages, tools))[-1]
    clean = parent is not None and not any(message.role == "assistant" for message in parent.rest)
    if clean or (earlier is not None and earlier.call.prompt_hash == prompt_hash):
        return Link(parent=parent, fork_reason=None if clean else _first_or_same(parent), prompt_hash=prompt_hash)
    return Link(parent=parent, fork_reason=fork_reason(messages, tools, earlier), prompt_hash=prompt_hash)


def raw_link(prompt_ids: Sequence[int]) -> Link:
    """The link of a prompt that is no conversation: it joins nothing, and repeats of it share their hash."""
    return Link(parent=None, fork_reason="raw_prompt", prompt_hash=raw_prompt_hash(prompt_ids))


def fork_reason(messages: Sequence[Message], tools: Sequence[ToolSpec], earlier: Earlier | None) -> ForkReason:
    """Compare a request that does not simply continue an answer with the session's last call."""
    not_served: ForkReason = (
        "assistant_not_served" if any(m.role == "assistant" for m in messages) else "new_conversation"
    )
    if earlier is None:
        return not_served
    ours = [canonical_message(message) for message in messages]
    theirs = [canonical_message(message) for message in earlier.messages]
    if _common(_spoken(ours), _spoken(theirs)) == 0:
        return not_served
    if _leading_system(ours) != _leading_system(theirs):
        return "system_changed"
    if tools_hash(tools) != tools_hash(earlier.tools):
        return "tools_changed"
    same = _common(ours, theirs)
    if same == len(ours):
        return "history_shortened"
    if same == len(theirs):
        return _behind_last_prompt(messages[same], earlier.call)
    return "assistant_rewritten" if theirs[same][0] == "assistant" else "history_rewritten"


def call_kind(earlier: ModelCall | None, prompt_hash: str, max_tokens: int | None) -> CallKind:
    """Kind of a call when it comes in; `settle_kinds` in `rows.py` corrects it by what came later.

    One token asked for is a probe of the endpoint, not a turn. A prompt that repeats the session's last one is another
    sample while that answer is under way, and a retry where it was delivered; where it was not, the new answer is the
    one that counts.
    """
    if max_tokens == 1:
        return "auxiliary"
    if earlier is None or earlier.prompt_hash != prompt_hash:
        return "agent"
    if earlier.status == "open":
        return "best_of_n"
    return "retry" if earlier.status == "complete" else "agent"


def _first_or_same(parent: Parent | None) -> ForkReason | None:
    return None if parent is not None else "new_conversation"


def _behind_last_prompt(next_message: Message, call: ModelCall) -> ForkReason:
    if next_message.role != "assistant":
        return "history_rewritten"
    return "assistant_rewritten" if call.status == "complete" else "parent_incomplete"


def _spoken(messages: list[list[object]]) -> list[list[object]]:
    return [message for message in messages if message[0] != "system"]


def _leading_system(messages: list[list[object]]) -> list[object] | None:
    return messages[0] if messages and messages[0][0] == "system" else None


def _common(left: list[list[object]], right: list[list[object]]) -> int:
    length = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        length += 1
    return length
