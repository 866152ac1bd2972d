"""Gemini's generateContent: what is read, what is refused, and the bytes that go back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from practicum.dialects import gemini
from practicum.dialects.dialect import AnswerFacts, Ending
from practicum.dialects.request import ChatRequest
from practicum.errors import EngineError, NotFound, RequestError
from practicum.types.messages import Message, ToolCall

HI = [{"role": "user", "parts": [{"text": "Hi"}]}]
PATH = {"model": "practicum", "method": "generateContent"}


def read(path: dict[str, str] = PATH, **fields: Any) -> ChatRequest:
    return gemini.parse(json.dumps({"contents": HI, **fields}).encode(), path)


def refused(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(**fields)
    return caught.value


@pytest.mark.parametrize(
    "config",
    [
        {"maxOutputTokens": 9, "topP": 0.5, "topK": 40.0, "stopSequences": ["E"], "seed": 7, "candidateCount": 1},
        {"max_output_tokens": 9, "top_p": 0.5, "top_k": 40, "stop_sequences": ["E"], "seed": 7},
    ],
)
def test_what_is_read_in_either_spelling(config: dict[str, Any]) -> None:
    request = read(generationConfig={**config, "temperature": 0, "thinkingConfig": {"thinkingBudget": -1}})
    params = request.params
    assert (params.temperature, params.top_p, params.top_k, params.stop, params.seed) == (0.0, 0.5, 40, ("E",), 7)
    assert request.max_tokens == 9 and request.model == "practicum" and not request.stream


def test_the_url_says_how_to_stream() -> None:
    streamed = {**PATH, "method": "streamGenerateContent"}
    assert read(streamed).stream_array and read(streamed).stream
    events = read({**streamed, "alt": "sse"})
    assert events.stream and not events.stream_array
    with pytest.raises(NotFound):
        read({**PATH, "method": "fly"})


def test_a_count_may_wrap_the_request() -> None:
    wrapped = {"generateContentRequest": {"contents": HI, "systemInstruction": {"parts": [{"text": "x"}]}}}
    request = gemini.parse(json.dumps(wrapped).encode(), {"model": "practicum", "task": "count"})
    assert [message.role for message in request.messages] == ["system", "user"]


def test_functions_are_read_in_both_schemas() -> None:
    own = {"type": "OBJECT", "properties": {"type": {"type": "STRING"}, "n": {"type": "INTEGER"}}}
    plain = {"type": "object", "properties": {"type": {"type": "string"}, "n": {"type": "integer"}}}
    declared = [{"name": "a", "parameters": own}, {"name": "b", "parametersJsonSchema": plain}]
    tools = read(tools=[{"functionDeclarations": declared}, {"googleSearch": {}}]).tools
    assert [(tool.name, tool.parameters) for tool in tools] == [("a", plain), ("b", plain)]
    snake = read(tools=[{"function_declarations": [{"name": "b", "parameters_json_schema": plain}]}]).tools
    assert snake == tools[1:]


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"output": "a"}, "a"),
        ({"result": "a"}, "a"),
        ({"error": "a"}, '{"error": "a"}'),
        ({"output": 1}, '{"output": 1}'),
        ({"output": "a", "exit": 0}, '{"output": "a", "exit": 0}'),
        ({}, "{}"),
    ],
)
def test_a_results_wrapping_is_undone(response: dict[str, Any], text: str) -> None:
    part = {"functionResponse": {"id": "c", "name": "bash", "response": response}}
    contents = [{"role": "user", "parts": [{"text": "x"}, part, {"text": "y"}]}]
    assert read(contents=contents).messages == (
        Message(role="user", content="x"),
        Message(role="tool", content=text, tool_call_id="c", name="bash"),
        Message(role="user", content="y"),
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"contents": []}, "contents"),
        ({"contents": [{"role": "system", "parts": []}]}, "contents.0.role"),
        ({"contents": [{"parts": [{"inlineData": {"mimeType": "image/png"}}]}]}, "contents.0.parts.0"),
        ({"contents": [{"parts": [{"file_data": {}}]}]}, "contents.0.parts.0"),
        ({"contents": [{"parts": [{"functionCall": {"name": "x"}}]}]}, "contents.0.parts.0"),
        ({"cachedContent": "c"}, "cachedContent"),
        ({"cached_content": "c"}, "cachedContent"),
        ({"generationConfig": {"candidateCount": 2}}, "generationConfig.candidateCount"),
        ({"generation_config": {"response_mime_type": "text/html"}}, "generationConfig.responseMimeType"),
        ({"generationConfig": {"responseSchema": {}}}, "generationConfig.responseMimeType"),
        ({"generationConfig": {"responseModalities": ["IMAGE"]}}, "generationConfig.responseModalities"),
        ({"generationConfig": {"presencePenalty": 1}}, "generationConfig.presencePenalty"),
        ({"generationConfig": {"stopSequences": [""]}}, "generationConfig.stopSequences"),
        ({"generationConfig": {"topK": 1.5}}, "generationConfig.topK"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "SOME"}}}, "toolConfig.functionCallingConfig.mode"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "toolConfig.functionCallingConfig"),
        (
            {"toolConfig": {"functionCallingConfig": {"mode": "VALIDATED", "allowedFunctionNames": ["a"]}}},
            "toolConfig.functionCallingConfig",
        ),
    ],
)
def test_w10_w11_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert error.param == param and param in gemini.error_body(error)["error"]["message"]


def test_calls_can_be_forbidden() -> None:
    for mode, may in (("AUTO", True), ("VALIDATED", True), ("NONE", False)):
        assert read(toolConfig={"functionCallingConfig": {"mode": mode}}).parse_tools is may


def answer(**path: str) -> gemini.AnswerBuilder:
    request = read({**PATH, **path})
    facts = AnswerFacts(call_id="call_1", model="practicum@3", created=5.0, prompt_tokens=3, request=request)
    return gemini.answer(facts)


CALL = ToolCall(id="c", name="bash", arguments='{"n": 1e999}')
MESSAGE = Message(role="assistant", content="Hi", tool_calls=(CALL,))
END = Ending(reason="tool_calls", completion_tokens=2)


def test_the_body_of_an_answer() -> None:
    shown = json.loads(answer().body(MESSAGE, END, ()), parse_constant=pytest.fail)
    (candidate,) = shown["candidates"]
    assert candidate["finishReason"] == "STOP" and candidate["content"]["parts"] == [
        {"text": "Hi"}, {"functionCall": {"id": "c", "name": "bash", "args": {"n": "1e999"}}},
    ]  # fmt: skip
    assert (shown["responseId"], shown["modelVersion"]) == ("call_1", "practicum@3")
    assert shown["usageMetadata"] == {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5}


@pytest.mark.parametrize("failing", [False, True])
def test_w7_a_stream_is_events_or_one_array(failing: bool) -> None:
    def stream(made: gemini.AnswerBuilder) -> bytes:
        raw = made.start() + made.ping + made.text("Hi", ()) + made.ping + made.tool_call(CALL, ())
        return raw + (made.error(EngineError("it burns")) if failing else made.finish(MESSAGE, END, ()))

    raw = stream(answer(method="streamGenerateContent", alt="sse"))
    events = [json.loads(line[6:]) for line in raw.decode().splitlines() if line.strip()]
    array = json.loads(stream(answer(method="streamGenerateContent")))
    assert events == array and len(array) == 3
    assert ("error" in array[-1]) is failing
