"""What callers demand of an answer, in every dialect: formats, and calls of tools.

Pins: each provider's form becomes the same constraint or choice; one that is malformed or beyond what is offered is
refused with the field's name (W10).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from practicum.dialects.registry import DIALECTS
from practicum.dialects.request import ChatRequest
from practicum.errors import RequestError
from practicum.types.tokens import Constraint

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}, "required": ["b"]}
CALLING = "toolConfig.functionCallingConfig"
CHAT_TOOLS = [{"type": "function", "function": {"name": name}} for name in ("ls", "rm")]
FLAT_TOOLS = [{"type": "function", "name": name} for name in ("ls", "rm")]
BODIES: dict[str, dict[str, Any]] = {
    "openai_chat": {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": CHAT_TOOLS},
    "openai_completions": {"model": "m", "prompt": "Hi"},
    "openai_responses": {"model": "m", "input": "Hi", "tools": [*FLAT_TOOLS, {"type": "web_search"}]},
    "anthropic_messages": {
        "model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"name": "ls"}, {"name": "rm"}],
    },
    "gemini": {
        "contents": [{"parts": [{"text": "Hi"}]}],
        "tools": [{"functionDeclarations": [{"name": "ls"}, {"name": "rm"}]}],
    },
}  # fmt: skip


def read(dialect: str, **fields: Any) -> ChatRequest:
    body = json.dumps({**BODIES[dialect], **fields}).encode()
    return DIALECTS[dialect].parse(body, {"model": "m", "method": "generateContent"})


def refused(dialect: str, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(dialect, **fields)
    return caught.value


def wrapped(strict: bool | None = None) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": strict}}


@pytest.mark.parametrize(
    ("dialect", "fields", "strict", "source"),
    [
        ("openai_chat", {"response_format": wrapped(True)}, True, "response_format.json_schema.schema"),
        ("openai_chat", {"response_format": wrapped()}, False, "response_format.json_schema.schema"),
        ("openai_chat", {"response_format": {"type": "json_object", "schema": SCHEMA}}, False,
         "response_format.schema"),
        ("openai_chat", {"guided_json": SCHEMA}, True, "guided_json"),
        ("openai_chat", {"guided_json": json.dumps(SCHEMA)}, True, "guided_json"),
        ("openai_chat", {"structured_outputs": {"json": SCHEMA}}, True, "structured_outputs.json"),
        ("openai_completions", {"response_format": wrapped(True)}, True, "response_format.json_schema.schema"),
        ("openai_completions", {"guided_json": SCHEMA}, True, "guided_json"),
        ("openai_responses",
         {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}}, True,
         "text.format.schema"),
        ("anthropic_messages", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, True,
         "output_config.format.schema"),
        ("anthropic_messages", {"output_format": {"type": "json_schema", "schema": SCHEMA}}, True,
         "output_format.schema"),
        ("gemini", {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}}, False,
         "generationConfig.responseJsonSchema"),
        ("gemini", {"generation_config": {"response_mime_type": "application/json", "response_schema": SCHEMA}}, False,
         "generationConfig.responseSchema"),
    ],
)  # fmt: skip
def test_a_schema_is_read_in_every_form(dialect: str, fields: dict[str, Any], strict: bool, source: str) -> None:
    constraint = read(dialect, **fields).params.constraint
    assert constraint == Constraint(kind="json_schema", text=json.dumps(SCHEMA), strict=strict)
    assert constraint.source == source


@pytest.mark.parametrize(
    ("dialect", "fields", "expected"),
    [
        ("openai_chat", {"response_format": {"type": "json_object"}}, Constraint(kind="json_object")),
        ("openai_responses", {"text": {"format": {"type": "json_object"}}}, Constraint(kind="json_object")),
        ("openai_chat", {"structured_outputs": {"json_object": True}}, Constraint(kind="json_object")),
        ("openai_chat", {"guided_regex": "a+"}, Constraint(kind="regex", text="a+")),
        ("openai_completions", {"structured_outputs": {"regex": "a+"}}, Constraint(kind="regex", text="a+")),
        ("openai_chat", {"guided_choice": ['a"b', "ü"]}, Constraint(kind="grammar", text='start: "a\\"b" | "\\u00fc"')),
        ("openai_completions", {"guided_grammar": 'start: "a"'}, Constraint(kind="grammar", text='start: "a"')),
        ("openai_chat", {"structured_outputs": {"choice": ["a"], "disable_any_whitespace": False}},
         Constraint(kind="grammar", text='start: "a"')),
        ("gemini", {"generationConfig": {"responseMimeType": "text/x.enum",
                                         "responseSchema": {"type": "STRING", "enum": ["a", "b"]}}},
         Constraint(kind="grammar", text='start: "a" | "b"')),
        ("gemini", {"generationConfig": {"responseMimeType": "application/json"}},
         Constraint(kind="json_schema", text='{"anyOf": [{"type": "object"}, {"type": "array"}]}', strict=False)),
        ("openai_chat", {"response_format": {"type": "text"}}, None),
        ("openai_chat", {"guided_json": None, "structured_outputs": {"json_object": False}}, None),
        ("openai_responses", {"text": {"format": {"type": "text"}, "verbosity": "low"}}, None),
        ("anthropic_messages", {"output_config": {"effort": "high"}, "output_format": None}, None),
        ("gemini", {"generationConfig": {"responseMimeType": "text/plain"}}, None),
    ],
)  # fmt: skip
def test_other_formats_are_read(dialect: str, fields: dict[str, Any], expected: Constraint | None) -> None:
    assert read(dialect, **fields).params.constraint == expected


def test_side_calls_of_harnesses_are_read() -> None:
    title = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
    asked = {"effort": "high", "format": {"type": "json_schema", "schema": title}}  # Claude Code's title
    assert text_of(read("anthropic_messages", output_config=asked, tools=[])) == title
    score = {"type": "INTEGER", "description": "From 1 to 100."}  # Gemini CLI's router: capitals in a JSON schema
    router = {"type": "OBJECT", "properties": {"complexity_score": score}, "required": ["complexity_score"]}
    generation = {"responseMimeType": "application/json", "responseJsonSchema": router, "temperature": 0}
    assert text_of(read("gemini", generationConfig=generation)) == {
        "type": "object",
        "properties": {"complexity_score": {"type": "integer", "description": "From 1 to 100."}},
        "required": ["complexity_score"],
    }


def text_of(request: ChatRequest) -> Any:
    assert request.params.constraint is not None
    return json.loads(request.params.constraint.text)


@pytest.mark.parametrize(
    ("dialect", "fields", "param"),
    [
        ("openai_chat", {"response_format": wrapped() | {"json_schema": {}}}, "response_format.json_schema.schema"),
        ("openai_chat", {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ("openai_chat", {"response_format": "json"}, "response_format"),
        ("openai_chat", {"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ("openai_chat", {"guided_json": SCHEMA, "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ("openai_chat", {"guided_json": "{"}, "guided_json"),
        ("openai_chat", {"guided_json": "\ud800"}, "guided_json"),
        ("openai_chat", {"guided_json": '{"items":' * 5000 + "{}" + "}" * 5000}, "guided_json"),
        ("openai_chat", {"guided_json": [1]}, "guided_json"),
        ("openai_chat", {"guided_choice": []}, "guided_choice"),
        ("openai_chat", {"guided_choice": [1]}, "guided_choice"),
        ("openai_chat", {"guided_regex": 5}, "guided_regex"),
        ("openai_chat", {"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ("openai_chat", {"structured_outputs": []}, "structured_outputs"),
        ("openai_responses", {"text": {"format": {"type": "grammar"}}}, "text.format"),
        ("openai_responses", {"text": "json"}, "text"),
        ("anthropic_messages", {"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ("anthropic_messages", {"output_config": {"format": "json"}}, "output_config.format"),
        ("gemini", {"generationConfig": {"responseMimeType": "text/x.enum"}}, "generationConfig.responseMimeType"),
        ("gemini", {"generationConfig": {"responseMimeType": "text/x.enum", "responseSchema": {"type": "STRING"}}},
         "generationConfig.responseSchema.enum"),
        ("gemini", {"generationConfig": {"responseMimeType": "application/json", "responseSchema": [1]}},
         "generationConfig.responseSchema"),
        ("gemini", {"generationConfig": {"responseMimeType": "application/json", "responseSchema": SCHEMA,
                                         "responseJsonSchema": SCHEMA}}, "generationConfig.responseSchema"),
    ],
)  # fmt: skip
def test_w10_a_format_that_is_wrong_is_refused_by_name(dialect: str, fields: dict[str, Any], param: str) -> None:
    error = refused(dialect, **fields)
    assert error.param == param and error.status == 400


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


def calling(mode: str, *names: str) -> dict[str, Any]:
    return {"toolConfig": {"functionCallingConfig": {"mode": mode, "allowedFunctionNames": list(names)}}}


@pytest.mark.parametrize(
    ("dialect", "fields", "callable_", "must", "several"),
    [
        ("openai_chat", {"tool_choice": "required"}, "ls rm", "tool_choice", True),
        ("openai_chat", {"tool_choice": "required", "parallel_tool_calls": False}, "ls rm", "tool_choice", False),
        ("openai_chat", {"tool_choice": named("rm")}, "rm", "tool_choice", False),
        ("openai_chat", {"tool_choice": allowed("required", "ls", "rm")}, "ls rm", "tool_choice", True),
        ("openai_chat", {"tool_choice": allowed("auto", "ls")}, "ls", None, True),
        ("openai_chat", {"tool_choice": "none"}, "", None, True),
        ("openai_responses", {"tool_choice": "required"}, "ls rm", "tool_choice", True),
        ("openai_responses", {"tool_choice": {"type": "function", "name": "ls"}}, "ls", "tool_choice", False),
        ("openai_responses",
         {"tool_choice": {"type": "allowed_tools", "mode": "required",
                          "tools": [{"type": "function", "name": "rm"}, {"type": "web_search"}]}},
         "rm", "tool_choice", True),
        ("anthropic_messages", {"tool_choice": {"type": "any"}}, "ls rm", "tool_choice", True),
        ("anthropic_messages", {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, "ls rm",
         "tool_choice", False),
        ("anthropic_messages", {"tool_choice": {"type": "tool", "name": "rm"}}, "rm", "tool_choice", True),
        ("anthropic_messages", {"tool_choice": {"type": "none"}}, "", None, True),
        ("gemini", calling("ANY"), "ls rm", CALLING, True),
        ("gemini", calling("ANY", "rm"), "rm", CALLING, True),
        ("gemini", calling("VALIDATED", "rm"), "rm", None, True),
        ("gemini", calling("AUTO"), "ls rm", None, True),
        ("gemini", calling("NONE"), "", None, True),
    ],
)  # fmt: skip
def test_a_choice_of_tools_is_read_in_every_form(
    dialect: str, fields: dict[str, Any], callable_: str, must: str | None, several: bool
) -> None:
    request = read(dialect, **fields)
    assert " ".join(tool.name for tool in request.callable_tools) == callable_
    assert [tool.name for tool in request.tools] == ["ls", "rm"]  # all stay in the prompt
    assert (request.must_call, request.parallel_tools) == (must, several)


@pytest.mark.parametrize(
    ("dialect", "fields", "param"),
    [
        ("openai_chat", {"tool_choice": "required", "tools": []}, "tool_choice"),
        ("openai_chat", {"tool_choice": named("cp")}, "tool_choice"),
        ("openai_chat", {"tool_choice": {"type": "function"}}, "tool_choice"),
        ("openai_chat", {"tool_choice": {"type": "custom", "custom": {"name": "ls"}}}, "tool_choice"),
        ("openai_chat", {"tool_choice": allowed("required", "cp")}, "tool_choice"),
        ("openai_chat", {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}, "tool_choice"),
        ("openai_responses", {"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ("openai_responses",
         {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]}},
         "tool_choice"),
        ("anthropic_messages", {"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ("anthropic_messages", {"tool_choice": {"type": "tool", "name": "cp"}}, "tool_choice"),
        ("anthropic_messages", {"tool_choice": {"type": "any"}, "tools": []}, "tool_choice"),
        ("gemini", calling("ANY", "cp"), CALLING),
        ("gemini", {**calling("ANY"), "tools": []}, CALLING),
    ],
)  # fmt: skip
def test_w10_a_choice_that_cannot_be_honoured_is_refused(dialect: str, fields: dict[str, Any], param: str) -> None:
    assert refused(dialect, **fields).param == param
