"""Builds calls for episode tests, with ids that are easy to read: 1000, 1001, … sampled, small numbers prompt."""

from __future__ import annotations

from typing import Any

from practicum.episodes.matching import extended_hash, prefix_hashes
from practicum.types.calls import ModelCall
from practicum.types.messages import Message, ToolSpec

_order = iter(range(1_000_000))


def user(text: str) -> Message:
    return Message(role="user", content=text)


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def call(
    name: str,
    messages: list[Message],
    answer: Message | None = None,
    *,
    prompt: tuple[int, ...] = (1, 2),
    ids: tuple[int, ...] = (1000, 1001),
    tools: tuple[ToolSpec, ...] = (),
    **fields: Any,
) -> ModelCall:
    prompt_hash = prefix_hashes(messages, tools)[-1]
    defaults: dict[str, Any] = {
        "session_id": "s1",
        "principal": "helpdesk",
        "kind": "agent",
        "status": "complete",
        "created_at": float(next(_order)),
        "policy_version": 3,
        "model": "practicum@3",
        "request": {"model": "practicum", "messages": [{"role": m.role, "content": m.content} for m in messages]},
        "finish_reason": "stop",
        "logprobs": tuple(-0.5 for _ in ids),
        "sampled_logprobs": tuple(-0.5 for _ in ids),
        "versions": tuple(3 for _ in ids),
        "episode_id": f"ep_{name}",
        "history_hash": extended_hash(prompt_hash, answer) if answer is not None else "",
    }
    return ModelCall(
        call_id=name, prompt_ids=prompt, completion_ids=ids, prompt_hash=prompt_hash, **{**defaults, **fields}
    )
