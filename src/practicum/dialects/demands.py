"""What a caller may demand of an answer: a format, or a call of one of its tools. The forms that providers share.

A demand that is understood becomes a `Constraint` or a `Choice`; one that is not is refused by name. Whether an engine
can enforce it is the engine's to say. It must not know any one provider's other fields, nor any engine's grammar but
for strings in Lark notation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from practicum.dialects import wire as shared
from practicum.dialects.strict_json import parse_object
from practicum.errors import RequestError
from practicum.types.messages import ToolSpec
from practicum.types.tokens import Constraint

# vLLM's own fields, older (`guided_json`) and newer (`structured_outputs.json`), by what they hold.
_GUIDED = ("json", "regex", "choice", "grammar", "json_object")
_GUIDED_FIELDS = {f"guided_{name}": name for name in _GUIDED}
_GUIDED_HARMLESS = ("json", "regex", "choice", "grammar", "json_object", "disable_any_whitespace", "whitespace_pattern")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which tools may be called (None: all on offer), and whether one must be; `one`: at most one call."""

    names: tuple[str, ...] | None = None
    must: bool = False
    one: bool = False


def schema_constraint(schema: Any, source: str, *, strict: bool = True) -> Constraint:
    """A JSON schema as a constraint. Raises RequestError where it is no object."""
    if not isinstance(schema, dict):
        raise RequestError(f"`{source}`: a JSON schema is an object.", param=source)
    return Constraint(kind="json_schema", text=json.dumps(schema), strict=strict, source=source)


def openai_format(value: Any, source: str, *, wrapped: bool = True) -> Constraint | None:
    """`response_format` of chat completions, or `text.format` of responses, where the schema is not `wrapped`."""
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object" and value.get("schema") is None:
        return Constraint(kind="json_object", source=source)
    if kind == "json_schema" or kind == "json_object":
        inner = value
        if wrapped and kind == "json_schema":
            inner, source = value.get("json_schema"), f"{source}.json_schema"
            if not isinstance(inner, dict):
                raise RequestError(f"`{source}` is an object with a schema.", param=source)
        return schema_constraint(inner.get("schema"), f"{source}.schema", strict=inner.get("strict") is True)
    raise shared.unsupported(source, "the types are `text`, `json_object` and `json_schema`.")


def guided(body: Mapping[str, Any]) -> Constraint | None:
    """vLLM's `guided_…` fields and `structured_outputs`. Raises RequestError for more than one of them."""
    found = [(field, name, body[field]) for field, name in _GUIDED_FIELDS.items() if field in body]
    newer = body.get("structured_outputs")
    if newer is not None:
        if not isinstance(newer, dict):
            raise RequestError("`structured_outputs` is an object.", param="structured_outputs")
        for name, value in newer.items():
            if name not in _GUIDED_HARMLESS and value not in (None, False):
                raise shared.unsupported(f"structured_outputs.{name[:60]}", f"one of {', '.join(_GUIDED)} is.")
        found += [(f"structured_outputs.{name}", name, newer.get(name)) for name in _GUIDED]
    return only([_guided(name, value, source) for source, name, value in found if value not in (None, False)])


def only(constraints: Sequence[Constraint | None]) -> Constraint | None:
    """The one that is given. Raises RequestError where there are two."""
    given = [constraint for constraint in constraints if constraint is not None]
    if len(given) > 1:
        first, second = given[0].source, given[1].source
        raise RequestError(f"`{first}` and `{second}` ask for two formats.", hint="Send one of them.", param=second)
    return given[0] if given else None


def choice_constraint(values: Iterable[Any], source: str) -> Constraint:
    """The answer is one of these texts. Raises RequestError where they are none."""
    texts = list(values)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise RequestError(f"`{source}` is a list of texts.", param=source)
    return Constraint(kind="grammar", text=f"start: {' | '.join(map(json.dumps, texts))}", source=source)


def _guided(name: str, value: Any, source: str) -> Constraint:
    if name == "json_object":
        return Constraint(kind="json_object", source=source)
    if name == "json":
        if isinstance(value, str):
            try:
                value = parse_object(value.encode())
            except (RequestError, UnicodeEncodeError) as error:
                raise RequestError(f"`{source}` is no JSON object: {error}", param=source) from error
        return schema_constraint(value, source)
    if name == "choice":
        return choice_constraint(value if isinstance(value, list) else (), source)
    if not isinstance(value, str):
        raise RequestError(f"`{source}` is a text.", param=source)
    return Constraint(kind="regex" if name == "regex" else "grammar", text=value, source=source)


def chosen(choice: Choice, tools: Sequence[ToolSpec], source: str, *, several: bool | None = None) -> dict[str, Any]:
    """The choice as fields of a `ChatRequest`; `several` is False where the caller wants at most one call.

    Raises: RequestError for a tool that is not on offer, or where a call is demanded and there is none to make.
    """
    offered = {tool.name for tool in tools}
    unknown = next((name for name in choice.names or () if name not in offered), None)
    if unknown is not None:
        raise RequestError(f"`{source}` names {unknown[:60]!r}, which is not among the tools.", param=source)
    if choice.must and not (offered if choice.names is None else choice.names):
        raise RequestError(f"`{source}` demands a call, and no tool is offered.", param=source)
    return {
        "parse_tools": choice.names != (),
        "allowed_tools": choice.names or None,
        "must_call": source if choice.must else None,
        "parallel_tools": several is not False and not choice.one,
    }
