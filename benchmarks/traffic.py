"""Calls as agents make them, through the `openai` SDK: conversations of all kinds, and streams that outlive a swap."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serving import decide
from openai import OpenAI

from practicum.policies import Registry
from practicum.store import open_store

TOOL = {
    "type": "function",
    "function": {
        "name": "find_order",
        "description": "Look an order up.",
        "parameters": {"type": "object", "properties": {"number": {"type": "string"}}},
    },
}
QUESTIONS = ("Where is my parcel?", "The lamp is broken.", "Please send another one.", "Thank you, and the invoice?")


@dataclass(frozen=True, slots=True)
class Asked:
    """A call as its caller saw it: what was asked for, and the counts in the answer's usage."""

    call_id: str
    conversation: int
    stream: bool
    tools: bool
    prompt_tokens: int
    completion_tokens: int


def make_calls(
    url: str, key: str, count: int, *, max_tokens: int = 16, seed: int = 0, callers: int = 6, turns_with_tools: int = 4
) -> list[Asked]:
    """`count` calls in conversations of one to four turns, several at a time; in every third one tools are on offer."""
    client = OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=300)
    turns: list[int] = []
    while sum(turns) < count:
        most = turns_with_tools if _has_tools(len(turns)) else 4
        turns.append(min(1 + len(turns) % most, count - sum(turns)))
    with ThreadPoolExecutor(callers) as pool:
        made = pool.map(lambda index: _converse(client, index, turns[index], max_tokens, seed), range(len(turns)))
        return [asked for conversation in made for asked in conversation]


def _has_tools(conversation: int) -> bool:
    return conversation % 3 == 2


def _converse(client: OpenAI, index: int, turns: int, max_tokens: int, seed: int) -> list[Asked]:
    chance = random.Random(f"{seed}:{index}")
    tools = _has_tools(index)
    messages: list[dict[str, Any]] = [{"role": "system", "content": f"You are help desk number {index}."}]
    made = []
    for turn in range(turns):
        messages.append({"role": "user", "content": QUESTIONS[turn % len(QUESTIONS)]})
        stream = chance.random() < 0.5
        options: dict[str, Any] = {
            "model": "practicum",
            "messages": messages,
            "max_tokens": chance.randint(4, max_tokens),
            "temperature": chance.choice([0.0, 0.7, 1.0]),
            "top_p": chance.choice([1.0, 0.9]),
            "seed": chance.randrange(2**31),
        }
        if tools:
            options["tools"] = [TOOL]
        call_id, message, usage = _stream(client, options) if stream else _whole(client, options)
        made.append(Asked(call_id.removeprefix("chatcmpl-"), index, stream, tools, *usage))
        messages.append(message)
        for call in message.get("tool_calls") or ():
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "It is on its way."})
    return made


def _whole(client: OpenAI, options: Mapping[str, Any]) -> tuple[str, dict[str, Any], tuple[int, int]]:
    answer = client.chat.completions.create(**options)
    message = answer.choices[0].message.model_dump(exclude_none=True)
    return answer.id, message, (answer.usage.prompt_tokens, answer.usage.completion_tokens)


def _stream(client: OpenAI, options: Mapping[str, Any]) -> tuple[str, dict[str, Any], tuple[int, int]]:
    call_id, content, usage = "", "", (-1, -1)
    calls: list[dict[str, Any]] = []
    for event in client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        call_id = event.id
        if event.usage is not None:
            usage = (event.usage.prompt_tokens, event.usage.completion_tokens)
        for choice in event.choices:
            content += choice.delta.content or ""
            calls += [call.model_dump(exclude={"index"}) for call in choice.delta.tool_calls or ()]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    return call_id, message | ({"tool_calls": calls} if calls else {}), usage


def stream_through_swaps(
    url: str,
    key: str,
    home: Path,
    versions: Sequence[int],
    wait_for: Callable[[int], object],
    *,
    streams: int = 8,
    max_tokens: int = 32,
) -> dict[str, Any]:
    """Keep streams running while each version is promoted; returns call ids and how many straddled a swap."""
    client = OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=300)
    over = threading.Event()
    spans: list[tuple[str, float, float]] = []

    def caller(number: int) -> None:
        turn = 0
        while not over.is_set():
            began = time.monotonic()
            ask = f"Stream {number}, turn {turn}: tell me about the parcel."
            options = {"model": "practicum", "messages": [{"role": "user", "content": ask}], "max_tokens": max_tokens}
            call_id, _, _ = _stream(client, options)
            spans.append((call_id.removeprefix("chatcmpl-"), began, time.monotonic()))
            turn += 1

    swaps = []
    with open_store(home / "practicum.db") as store, ThreadPoolExecutor(streams) as pool:
        registry = Registry(store, home / "policies")
        running = [pool.submit(caller, number) for number in range(streams)]
        try:
            for version in versions:
                _more(spans, streams)
                decide(registry, version, "promote")
                wait_for(version)
                swaps.append(time.monotonic())
            _more(spans, streams)
        finally:
            over.set()
        for one in running:
            one.result()
    straddled = sum(any(began < swap < ended for swap in swaps) for _, began, ended in spans)
    return {"call_ids": [call_id for call_id, _, _ in spans], "straddled": straddled}


def _more(spans: Sequence[object], count: int, timeout_s: float = 300.0) -> None:
    """Wait until `count` further streams have ended."""
    goal, deadline = len(spans) + count, time.monotonic() + timeout_s
    while len(spans) < goal:
        if time.monotonic() > deadline:
            raise TimeoutError("the streams stopped")
        time.sleep(0.02)
