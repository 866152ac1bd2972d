"""Forced calls: a grammar for answers that are calls, in the form in which the model's family writes them.

A form whose arguments are JSON is a `CallForm`: what stands before a call's name, between name and arguments, behind
them, and between two calls. A family with another form of that kind is one more constant here; one whose arguments are
no JSON has none, and its renderer refuses a forced call by name.

The arguments follow the tool's schema. Keywords that the engine cannot enforce are left out of it: harnesses send
schemas with such, and a call that is checked for the rest beats none. Names and marks are forced literally; a mark that
is a special token of the tokenizer is forced as that token, and a name that spells one is not.

The rule `start` is the whole answer. Reasoning that comes before it would stand there, as a rule in front of the
others. This module must not know wire formats or how an engine reads a grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from practicum.errors import RequestError
from practicum.types.messages import ToolSpec
from practicum.types.tokens import Constraint

# White space between JSON's marks, at most this much in one place: without a bound a weak model may never leave it.
WHITESPACE = r"[ \n\r\t]{1,40}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """How a call is written: `before` name (a JSON string) `middle` arguments (a JSON object) `behind`."""

    before: str
    middle: str
    behind: str
    between: str


HERMES = CallForm(
    before='<tool_call>\n{"name": ', middle=', "arguments": ', behind="}\n</tool_call>", between="\n"
)  # as Hermes and Qwen models write it


def call_grammar(
    form: CallForm,
    tools: Sequence[ToolSpec],
    *,
    several: bool,
    answer: Constraint | None,
    special_ids: Mapping[str, int],
    source: str,
) -> Constraint:
    """The constraint under which an answer is one call, or some where `several`, or else a JSON `answer` where given.

    Args:
        form: how calls are written.
        tools: those of which one must be called; at least one.
        several: whether more than one call may follow.
        answer: what else the answer may be, of the kinds `json_schema` and `json_object`.
        special_ids: the tokenizer's special tokens by text.
        source: the request's field that asks for it.

    Raises: RequestError for a tool whose parameters describe no object.
    """
    rules = [
        f"start: calls{' | answer' if answer else ''}",
        f"calls: call{f' ({_literal(form.between, special_ids)} call)*' if several else ''}",
        f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}",
    ]
    for index, tool in enumerate(tools):
        name = _quoted(json.dumps(tool.name, ensure_ascii=False))
        before, middle, behind = (_literal(mark, special_ids) for mark in (form.before, form.middle, form.behind))
        rules.append(f"call_{index}: {before} {name} {middle} arguments_{index} {behind}")
        rules.append(f"arguments_{index}: %json {_json_rule(_object_schema(tool), lenient=True)}")
    if answer is not None:
        schema = json.loads(answer.text) if answer.kind == "json_schema" else {"type": "object"}
        rules.append(f"answer: %json {_json_rule(schema, lenient=not answer.strict)}")
    return Constraint(kind="grammar", text="\n".join(rules), source=source)


def _json_rule(schema: Mapping[str, Any], *, lenient: bool) -> str:
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE, "lenient": lenient}})


def _object_schema(tool: ToolSpec) -> dict[str, Any]:
    """The tool's parameters as the schema of an object: parsers take nothing else for arguments."""
    kind = tool.parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise RequestError(
            f"A call of {tool.name[:60]!r} cannot be forced: its parameters are no object.", param="tools"
        )
    return {**tool.parameters, "type": "object"}


def _literal(text: str, special_ids: Mapping[str, int]) -> str:
    """A mark in Lark notation: text in quotes, special tokens by id."""
    if not special_ids:
        return _quoted(text)
    pieces = re.split("(" + "|".join(map(re.escape, sorted(special_ids, key=len, reverse=True))) + ")", text)
    return " ".join(
        f"<[{special_ids[piece]}]>" if piece in special_ids else _quoted(piece) for piece in pieces if piece
    )


def _quoted(text: str) -> str:
    return json.dumps(text)
