"""Nothing is lost on the way in or out, whatever the conversation.

What is pinned, as properties: a conversation that a caller writes in any form of a dialect is read as it was meant, and
hashes as the same one does in every other dialect (E3, W9); an answer, as a body and as a stream in pieces of any size,
is what the provider's own SDK reads, the two say the same, and sent back it is the message that was served; so it is
where OpenAI's free-form and namespaced tools were called.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from google import genai
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.dialects.writers import PATH, WRITERS, answers, arguments, conversations, kept, words

from practicum.dialects.dialect import AnswerFacts, Ending
from practicum.dialects.registry import DIALECTS
from practicum.dialects.request import ChatRequest
from practicum.episodes.matching import prefix_hashes, reasoning_change
from practicum.types.messages import Message, Piece, Thought, ToolCall

fixed = settings(max_examples=120, derandomize=True, deadline=None)
END = Ending(reason="stop", completion_tokens=9, reasoning_tokens=4)


def read(dialect: str, body: dict[str, Any]) -> ChatRequest:
    return DIALECTS[dialect].parse(json.dumps(body).encode(), PATH)


@pytest.mark.parametrize("dialect", WRITERS)
@given(messages=conversations(), form=st.integers(0, 5))
@fixed
def test_e3_w9_what_a_caller_writes_is_what_is_read(dialect: str, messages: tuple[Message, ...], form: int) -> None:
    found = read(dialect, WRITERS[dialect](messages, form)).messages
    assert kept(found) == kept(messages)
    assert prefix_hashes(found, ()) == prefix_hashes(messages, ())
    assert reasoning_change(found, messages, "fork", returned=True) is None


class Wire:
    """Gives each SDK the bytes of an answer as if a server had sent them."""

    def __init__(self) -> None:
        self.raw, self.kind = b"", ""
        self.openai = openai.OpenAI(api_key="k", base_url="http://x/v1", http_client=self._client(httpx))
        self.anthropic = anthropic.Anthropic(api_key="k", base_url="http://x", http_client=self._client(httpx2))
        options = types.HttpOptions(base_url="http://x", httpx_client=self._client(httpx))
        self.google = genai.Client(api_key="k", http_options=options)

    def _client(self, library: Any) -> Any:
        """A client of the library that an SDK builds upon."""

        def answer(request: Any) -> Any:
            return library.Response(200, content=self.raw, headers={"content-type": self.kind})

        return library.Client(transport=library.MockTransport(answer))  # fmt: skip


WIRE = Wire()
HI = [{"role": "user", "content": "Hi"}]


def chat_body() -> dict[str, Any]:
    return WIRE.openai.chat.completions.create(model="m", messages=HI).choices[0].message.model_dump()


def chat_stream() -> dict[str, Any]:
    with WIRE.openai.chat.completions.stream(model="m", messages=HI) as events:
        message = events.get_final_completion().choices[0].message.model_dump()
    for call in message["tool_calls"] or ():
        call["function"].pop("parsed_arguments", None)
        call.pop("index", None)
    return message


def chat_chunks() -> dict[str, Any]:
    """What a caller makes of a stream that calls free-form tools: the SDK's own accumulator reads functions only."""
    deltas = [c.choices[0].delta for c in WIRE.openai.chat.completions.create(model="m", messages=HI, stream=True)]
    made = [call.model_dump(exclude_none=True, exclude={"index"}) for d in deltas for call in d.tool_calls or ()]
    return {"role": "assistant", "content": "".join(d.content or "" for d in deltas), "tool_calls": made}


def responses_body() -> list[dict[str, Any]]:
    return [item.model_dump(exclude_none=True) for item in WIRE.openai.responses.create(model="m", input="Hi").output]


def responses_stream() -> list[dict[str, Any]]:
    with WIRE.openai.responses.stream(model="m", input="Hi") as events:
        output = events.get_final_response().output
    return [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in output]


def anthropic_body() -> list[dict[str, Any]]:
    message = WIRE.anthropic.messages.create(model="m", max_tokens=9, messages=HI)
    return [block.model_dump(exclude_none=True) for block in message.content]


def anthropic_stream() -> list[dict[str, Any]]:
    with WIRE.anthropic.messages.stream(model="m", max_tokens=9, messages=HI) as events:
        return [block.model_dump(exclude_none=True) for block in events.get_final_message().content]


def gemini_parts(replies: Sequence[types.GenerateContentResponse]) -> list[dict[str, Any]]:
    parts = [part for reply in replies for part in reply.candidates[0].content.parts]
    return [part.model_dump(mode="json", exclude_none=True, by_alias=True) for part in parts]


def gemini_body() -> list[dict[str, Any]]:
    return gemini_parts([WIRE.google.models.generate_content(model="m", contents="Hi")])


def gemini_stream() -> list[dict[str, Any]]:
    return gemini_parts(list(WIRE.google.models.generate_content_stream(model="m", contents="Hi")))


def chat_history(message: Any) -> dict[str, Any]:
    return {"messages": [*HI, message, *HI]}


def responses_history(items: Any) -> dict[str, Any]:
    return {"input": [*HI, *items, *HI]}


def anthropic_history(blocks: Any) -> dict[str, Any]:
    return {"max_tokens": 9, "messages": [*HI, {"role": "assistant", "content": blocks}, *HI]}


def gemini_history(parts: Any) -> dict[str, Any]:
    hi = {"role": "user", "parts": [{"text": "Hi"}]}
    return {"contents": [hi, {"role": "model", "parts": parts}, hi]}


# What asks for all of the reasoning, how the SDK reads a body and a stream, and how a caller sends both back.
SDKS: dict[str, tuple[dict[str, Any], Callable[[], Any], Callable[[], Any], Callable[[Any], dict[str, Any]]]] = {
    "openai_chat": ({"messages": HI}, chat_body, chat_stream, chat_history),
    "openai_responses": ({"input": HI}, responses_body, responses_stream, responses_history),
    "anthropic_messages": (
        {"max_tokens": 9, "messages": HI, "thinking": {"type": "adaptive"}},
        anthropic_body, anthropic_stream, anthropic_history,
    ),
    "gemini": (
        {"contents": [{"parts": [{"text": "Hi"}]}], "generationConfig": {"thinkingConfig": {"includeThoughts": True}}},
        gemini_body, gemini_stream, gemini_history,
    ),
}  # fmt: skip
SEALED: dict[str, dict[str, Any]] = {
    "openai_responses": {"include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}},
    "anthropic_messages": {"thinking": {"type": "adaptive", "display": "omitted"}},
    "gemini": {"generationConfig": {}},
}


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def pieces(message: Message, size: int, woven: bool) -> list[Piece]:
    """The message as it is sampled: reasoning, text, calls; woven, with the text between two parts of the reasoning."""
    thoughts: list[Piece] = [Thought(text=part) for part in cut(message.reasoning, size)]
    half = len(thoughts) // 2 if woven else len(thoughts)
    return [*thoughts[:half], *cut(message.content, size), *thoughts[half:], *message.tool_calls]


def streamed(answer: Any, message: Message, parts: Sequence[Piece]) -> bytes:
    raw: bytes = answer.start()
    for piece in parts:
        if isinstance(piece, str):
            raw += answer.text(piece, ())
        elif isinstance(piece, Thought):
            raw += answer.thought(piece.text, ())
        else:
            raw += answer.tool_call(piece, ())
    return raw + answer.finish(message, END, ())  # type: ignore[no-any-return]


def replayed(
    dialect: str,
    message: Message,
    parts: Sequence[Piece] | None,
    asked: dict[str, Any],
    read_stream: Callable[[], Any] | None = None,
) -> Message:
    """The message as it comes back from a caller who read it with the SDK: from a body, or from a stream in parts."""
    _, read_body, read_events, history = SDKS[dialect]
    path = {**PATH, "alt": "sse", "method": "generateContent" if parts is None else "streamGenerateContent"}
    request = DIALECTS[dialect].parse(json.dumps({"model": "practicum", **asked}).encode(), path)
    facts = AnswerFacts(call_id="call_1", model="practicum@0", created=1.0, prompt_tokens=3, request=request)
    answer = DIALECTS[dialect].answer(facts)
    WIRE.raw = answer.body(message, END, ()) if parts is None else streamed(answer, message, parts)
    WIRE.kind = "application/json" if parts is None else answer.stream_type
    shown = read_body() if parts is None else (read_stream or read_events)()
    _, found, _ = read(dialect, {"model": "practicum", **history(shown)}).messages
    return found


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("dialect", SDKS)
@given(message=answers(), size=st.integers(1, 5), woven=st.booleans())
@fixed
def test_w9_an_answer_is_what_the_sdk_reads_and_what_it_sends_back(
    dialect: str, sealed: bool, message: Message, size: int, woven: bool
) -> None:
    if sealed and dialect not in SEALED:
        return
    asked = {**SDKS[dialect][0], **(SEALED[dialect] if sealed else {})}
    body = replayed(dialect, message, None, asked)
    stream = replayed(dialect, message, pieces(message, size, woven), asked)
    assert kept([body]) == kept([stream]) == kept([message])


NAMESPACED = [
    {"type": "function", "name": "bash"},
    {"type": "custom", "name": "free"},
    {
        "type": "namespace",
        "name": "n",
        "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "free"}],
    },
]
FREE = [{"type": "function", "function": {"name": "bash"}}, {"type": "custom", "custom": {"name": "free"}}]
texts = words.map(lambda text: json.dumps({"input": text}))


@pytest.mark.parametrize(("dialect", "tools", "plain", "free"), [
    ("openai_chat", FREE, ["bash"], ["free"]),
    ("openai_responses", NAMESPACED, ["bash", "n.f"], ["free", "n.free"]),
])  # fmt: skip
@given(data=st.data(), content=words, size=st.integers(1, 5))
@fixed
def test_w9_calls_of_free_form_and_namespaced_tools_come_back_as_they_were_served(
    dialect: str, tools: list[Any], plain: list[str], free: list[str], data: st.DataObject, content: str, size: int
) -> None:
    call = st.tuples(st.sampled_from(plain), arguments) | st.tuples(st.sampled_from(free), texts)
    made = data.draw(st.lists(call, min_size=1, max_size=3))
    calls = tuple(ToolCall(id=f"c{n}", name=name, arguments=text) for n, (name, text) in enumerate(made))
    message = Message(role="assistant", content=content, tool_calls=calls)
    asked = {**SDKS[dialect][0], "tools": tools}
    body = replayed(dialect, message, None, asked)
    chunks = {"openai_chat": chat_chunks}.get(dialect)
    stream = replayed(dialect, message, pieces(message, size, woven=False), asked, chunks)
    assert kept([body]) == kept([stream]) == kept([message])
