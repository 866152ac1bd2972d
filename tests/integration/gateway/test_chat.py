"""The chat endpoint through the official SDK."""

from __future__ import annotations

from typing import Any

from practicum.types.calls import ModelCall

BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


def only_call(up: Any) -> ModelCall:
    (call,) = up.calls()
    return call


def test_w1_the_record_holds_every_sampled_id_of_a_streamed_tool_call(up: Any) -> None:
    client = up.openai()
    stream = client.chat.completions.create(
        model="practicum",
        messages=[{"role": "user", "content": "List the files."}],
        tools=[BASH],
        stream=True,
        stream_options={"include_usage": True},
    )
    events = list(stream)
    call = only_call(up)
    assert events[-1].usage.completion_tokens == len(call.completion_ids) == len(call.logprobs) == len(call.versions)
    assert "<tool_call>" in up.renderer.tokenizer.decode(call.completion_ids)
    assert call.untrainable_reason is None
    print(events, call)
