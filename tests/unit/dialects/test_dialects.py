"""What holds for every dialect: the same conversation is the same, records are read back, broken bodies are refused.

What is pinned: E3 and the canonical form across providers, whatever harnesses put beside it; W10 unknown fields are
kept; W11 what is no text is refused; every refusal is a RequestError that names a field, in each provider's own error
shape.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.dialects.mutations import BODIES, broken

from practicum.dialects.registry import DIALECTS, call_id_in, recorded_request
from practicum.episodes.matching import prefix_hashes
from practicum.errors import EngineError, NotFound, RequestError, Unauthenticated
from practicum.types.messages import Message, ToolCall

CONVERSATIONAL = [name for name in DIALECTS if name != "openai_completions"]
PATH = {"model": "practicum", "method": "generateContent"}
CHAT_SYSTEM = {"role": "system", "content": "Be brief."}


def read(dialect: str, body: dict[str, Any]) -> Any:
    return DIALECTS[dialect].parse(json.dumps(body).encode(), PATH)


@pytest.mark.parametrize("dialect", CONVERSATIONAL)
def test_the_same_conversation_hashes_the_same(dialect: str) -> None:
    arguments = {"openai_chat": "{}", "openai_responses": "{}"}.get(dialect, '{"a": 1}')
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    chat = {**BODIES["openai_chat"], "messages": [CHAT_SYSTEM, *BODIES["openai_chat"]["messages"]]}
    chat["messages"][2] = {"role": "assistant", "content": None, "tool_calls": [call]}
    if dialect == "openai_chat":
        chat["messages"][0] = {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}
        ours = read(dialect, chat)
    else:
        ours = read(dialect, BODIES[dialect])
    theirs = read("openai_chat", chat)
    assert prefix_hashes(ours.messages, ()) == prefix_hashes(theirs.messages, ())
    if dialect != "gemini":  # whose body here has a schema of its own
        assert prefix_hashes(ours.messages, ours.tools) == prefix_hashes(theirs.messages, theirs.tools)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_record_is_read_back_as_it_was_read(dialect: str) -> None:
    request = read(dialect, BODIES[dialect])
    again = recorded_request(dialect, request.body)
    assert (again.messages, again.tools, again.params) == (request.messages, request.tools, request.params)
    assert again.prompt == request.prompt and bool(request.messages) != (request.prompt is not None)
    assert request.max_tokens == 3


def test_a_record_of_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(RequestError):
        recorded_request("telex", {})


@pytest.mark.parametrize("dialect", DIALECTS)
def test_w10_unknown_fields_are_accepted_and_kept(dialect: str) -> None:
    body = {**BODIES[dialect], "from_the_future": [1, {"x": None}], "service_tier": "flex", "store": True}
    assert read(dialect, body).body == body


# What harnesses send that changes how an answer comes about, or what is kept of it, but not what is asked.
HARMLESS: dict[str, dict[str, Any]] = {
    "openai_chat": {
        "prediction": {"type": "content", "content": "x"}, "store": True, "metadata": {"a": "b"}, "verbosity": "low",
        "service_tier": "flex", "prompt_cache_key": "k", "safety_identifier": "u", "user": "u",
        "reasoning_effort": "high",
    },
    "openai_responses": {
        "store": False, "metadata": {"a": "b"}, "prompt_cache_key": "k", "service_tier": "auto", "user": "u",
        "client_metadata": {"x": 1}, "text": {"verbosity": "low"}, "reasoning": {"effort": "low", "context": "all"},
        "include": ["reasoning.encrypted_content"], "truncation": "disabled",
    },
    "openai_completions": {"user": "u", "metadata": {"a": "b"}, "best_of": 1},
    "anthropic_messages": {
        "metadata": {"user_id": "u"}, "service_tier": "auto", "context_management": {"edits": []}, "betas": ["x"],
        "thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "medium"},
    },
    "gemini": {"safetySettings": [], "labels": {"a": "b"}, "store": True},
}  # fmt: skip


@pytest.mark.parametrize("dialect", DIALECTS)
def test_w10_what_harnesses_send_beside_the_question_changes_nothing(dialect: str) -> None:
    plain, body = read(dialect, BODIES[dialect]), dict(BODIES[dialect])
    for name, value in HARMLESS[dialect].items():  # some stand beside a demanded format in one object
        body[name] = {**body[name], **value} if name in body else value
    request = read(dialect, body)
    assert (request.messages, request.tools, request.params) == (plain.messages, plain.tools, plain.params)
    assert (request.prompt, request.max_tokens, request.body) == (plain.prompt, plain.max_tokens, body)


IMAGE: dict[str, Any] = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
INLINE: dict[str, Any] = {"inlineData": {"mimeType": "image/png", "data": ""}}
USER: dict[str, Any] = {"role": "user", "content": "Hi"}
CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
ITEM_CALL = {"type": "function_call", "call_id": "c", "name": "bash", "arguments": "{}"}
ITEM_IMAGE = {"type": "input_image", "image_url": "data:,"}
GOOGLE_USER = {"role": "user", "parts": [{"text": "Hi"}]}
GOOGLE_CALL = {"role": "model", "parts": [{"functionCall": {"id": "c", "name": "bash", "args": {}}}]}
GOOGLE_RESULT = {"id": "c", "name": "bash", "response": {"output": "x"}, "parts": [INLINE]}
# Wherever a provider lets an image, a document or audio stand: what is sent, and the place that is named.
NO_TEXT: tuple[tuple[str, str, list[Any], str], ...] = (
    ("openai_chat", "messages", [{"role": "system", "content": [IMAGE]}, USER], "messages.0.content.0"),
    ("openai_chat", "messages", [USER, {"role": "assistant", "content": [IMAGE]}, USER], "messages.1.content.0"),
    ("openai_chat", "messages", [USER, {"role": "assistant", "audio": {"id": "a"}}], "messages.1.audio"),
    (
        "openai_chat", "messages",
        [USER, {"role": "assistant", "tool_calls": [CHAT_CALL]}, {"role": "tool", "content": [IMAGE]}],
        "messages.2.content.0",
    ),
    ("openai_responses", "input", [{**USER, "content": [{"type": "input_file", "file_id": "f"}]}], "input.0.content.0"),
    (
        "openai_responses", "input",
        [USER, ITEM_CALL, {"type": "function_call_output", "call_id": "c", "output": [ITEM_IMAGE]}],
        "input.2.output.0",
    ),
    ("openai_responses", "input", [USER, {"type": "image_generation_call", "result": "x"}, USER], "input.1"),
    (
        "openai_responses", "input",
        [USER, {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}}],
        "input.1.output",
    ),
    ("anthropic_messages", "system", [IMAGE], "system.0"),
    ("anthropic_messages", "messages", [{"role": "system", "content": [IMAGE]}, USER], "messages.0.content.0"),
    ("anthropic_messages", "messages", [USER, {"role": "assistant", "content": [IMAGE]}, USER], "messages.1.content.0"),
    (
        "anthropic_messages", "messages",
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "document"}]}]}],
        "messages.0.content.0.content.0",
    ),
    ("gemini", "contents", [GOOGLE_USER, {"role": "model", "parts": [INLINE]}, GOOGLE_USER], "contents.1.parts.0"),
    (
        "gemini", "contents",
        [GOOGLE_USER, GOOGLE_CALL, {"role": "user", "parts": [{"functionResponse": GOOGLE_RESULT}]}],
        "contents.2.parts.0.functionResponse.parts",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("dialect", "field", "value", "param"), NO_TEXT)
def test_w11_what_is_no_text_is_refused_wherever_it_stands(
    dialect: str, field: str, value: list[Any], param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        read(dialect, {**BODIES[dialect], field: value})
    assert (caught.value.status, caught.value.param) == (400, param)


# What harnesses and their libraries put into a history beside what was served: keys, forms of text, settings of a turn.
SPELLED: tuple[tuple[str, str, list[Any], list[Any]], ...] = (
    (
        "openai_chat", "messages",
        [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [{**CHAT_CALL, "index": 0}], "refusal": None,
             "annotations": [], "audio": None, "reasoning_content": "", "__copilotMessageSource": "main"},
            {"role": "tool", "name": "bash", "content": [{"type": "text", "text": "x"}], "tool_call_id": "c"},
        ],
        [USER, {"role": "assistant", "tool_calls": [CHAT_CALL]}, {"role": "tool", "content": "x", "tool_call_id": "c"}],
    ),
    (
        "openai_responses", "input",
        [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}], "id": "msg_new",
             "internal_chat_message_metadata_passthrough": {"turn": 1}},
            {**ITEM_CALL, "id": "fc_call_other", "status": "completed"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
        ],
        [USER, ITEM_CALL, {"type": "function_call_output", "call_id": "c", "output": "x"}],
    ),
    (
        "anthropic_messages", "messages",
        [
            {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
            {"role": "system", "content": [{"type": "text", "text": "r"}], "output_config": {"effort": "high"}},
        ],
        [USER, {"role": "system", "content": "r"}],
    ),
    (
        "gemini", "contents",
        [GOOGLE_USER, {"role": "model", "parts": [
            {"function_call": {"name": "bash", "args": {}, "id": "made-up"},
             "thoughtSignature": "skip_thought_signature_validator"}]}, GOOGLE_USER],
        [GOOGLE_USER, GOOGLE_CALL, GOOGLE_USER],
    ),
)  # fmt: skip


@pytest.mark.parametrize(("dialect", "field", "sent", "served"), SPELLED)
def test_e3_what_harnesses_add_to_a_history_leaves_it_the_same(
    dialect: str, field: str, sent: list[Any], served: list[Any]
) -> None:
    found, plain = (read(dialect, {**BODIES[dialect], field: value}) for value in (sent, served))
    assert prefix_hashes(found.messages, found.tools) == prefix_hashes(plain.messages, plain.tools)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_broken_bodies_are_read_or_refused_by_name(dialect: str) -> None:
    refused = 0
    for body in broken(dialect, 1500):
        try:
            request = read(dialect, body)
            assert request.messages or request.prompt is not None
        except RequestError as error:
            refused += 1
            assert error.status == 400 and error.param
            json.dumps(DIALECTS[dialect].error_body(error)).encode()
    assert refused > 500


@pytest.mark.parametrize("dialect", DIALECTS)
def test_answers_ids_lead_back_to_the_call(dialect: str) -> None:
    assert call_id_in(DIALECTS[dialect].ID_PREFIX + "call_1") == "call_1" == call_id_in("call_1")


@pytest.mark.parametrize(
    ("error", "anthropic", "google"),
    [
        (RequestError("m", param="p"), "invalid_request_error", "INVALID_ARGUMENT"),
        (Unauthenticated("m"), "authentication_error", "UNAUTHENTICATED"),
        (NotFound("m"), "not_found_error", "NOT_FOUND"),
        (EngineError("m"), "api_error", "UNAVAILABLE"),
    ],
)
def test_errors_have_each_providers_shape(error: Any, anthropic: str, google: str) -> None:
    text = "p: m" if error.param else "m"
    assert DIALECTS["anthropic_messages"].error_body(error) == {
        "type": "error",
        "error": {"type": anthropic, "message": text},
    }
    shown = DIALECTS["gemini"].error_body(error)["error"]
    assert shown == {"code": error.status, "message": text, "status": google}
    assert DIALECTS["openai_responses"].error_body(error)["error"]["param"] == error.param


ITEMS_OF_ONE_ANSWER: dict[str, dict[str, Any]] = {
    "anthropic_messages": {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "tool_use", "id": "c", "name": "bash", "input": {}},
                    {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}},
                ],
            },
            {"role": "user", "content": "Go on"},
        ]
    },
    "openai_responses": {
        "input": [
            {"role": "user", "content": "Hi"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c", "name": "bash", "arguments": "{}"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "Go on"},
        ]
    },
    "gemini": {
        "contents": [
            {"parts": [{"text": "Hi"}]},
            {"role": "model", "parts": [{"text": "a"}]},
            {
                "role": "model",
                "parts": [{"text": "hm", "thought": True}, {"functionCall": {"id": "c", "name": "bash"}}],
            },
            {"role": "model", "parts": [{"text": "b", "thoughtSignature": "s"}, {"thoughtSignature": "s"}]},
            {"role": "user", "parts": [{"text": "Go on"}]},
        ]
    },
}


@pytest.mark.parametrize("dialect", ITEMS_OF_ONE_ANSWER)
def test_the_items_of_one_answer_are_one_message(dialect: str) -> None:
    body = {"model": "practicum", "max_tokens": 9, **ITEMS_OF_ONE_ANSWER[dialect]}
    assert read(dialect, body).messages[1:] == (
        Message(
            role="assistant",
            content="ab",
            tool_calls=(ToolCall(id="c", name="bash", arguments="{}"),),
            reasoning="hm",
        ),
        Message(role="user", content="Go on"),
    )
