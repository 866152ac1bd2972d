"""What the dialects' readers share: strict models open to further fields, refusals by name, the canonical forms.

It must not know any one provider.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from practicum.errors import PracticumError, RequestError
from practicum.types.messages import Message, ToolSpec

_COMPACT = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_FORM = re.compile(r"(str|int|float|bool|none|dict|list|function-[a-z]+|Wire\w*)(\[.*)?", re.DOTALL)
MOST_STOPS = 16
MOST_STOP_CHARS = 1000


class Wire(BaseModel):
    """Strict in types, open to further fields; errors never quote the input."""

    model_config = ConfigDict(extra="allow", strict=True, hide_input_in_errors=True)


Model = TypeVar("Model", bound=Wire)
# A whole number, also where a client's JSON has it as 40.0.
Whole = Annotated[int, BeforeValidator(lambda v: int(v) if isinstance(v, float) and v.is_integer() else v)]
# field: (whether a value changes nothing, why others are refused)
Refusals = Mapping[str, tuple[Callable[[Any], bool], str]]

absent: Callable[[Any], bool] = lambda value: value is None
zero: Callable[[Any], bool] = lambda value: value is None or (type(value) in (int, float) and value == 0)
one: Callable[[Any], bool] = lambda value: value is None or (type(value) in (int, float) and value == 1)
empty: Callable[[Any], bool] = lambda value: value is None or value in ({}, [])
off: Callable[[Any], bool] = lambda value: value is None or value is False

OWN_DISTRIBUTION = "the engine samples from the policy's own distribution."
TEXT_ONLY = "the model reads and writes text only."
ONE_ANSWER = "one answer a request is given; send the request again for another."


def validated(model: type[Model], body: dict[str, Any]) -> Model:
    """The body as a model. Raises RequestError naming a field at fault."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        # Of a value that may have several forms, each form complains: the one that got furthest names the fault.
        path, says = max(((_path(one["loc"], body), one["msg"]) for one in found), key=lambda one: len(one[0]))
        param = ".".join(str(part)[:60] for part in path)
        raise RequestError(f"`{param}`: {says}.", param=param) from error


def _path(location: Sequence[str | int], body: Any) -> tuple[str | int, ...]:
    """A location as the caller knows it: without the names of the forms that a value was tried as."""
    path: list[str | int] = []
    for part in location:
        inside = (isinstance(body, dict) and part in body) or (isinstance(body, list) and isinstance(part, int))
        if not inside and isinstance(part, str) and _FORM.fullmatch(part):
            continue
        path.append(part)
        body = body[part] if inside else None
    return tuple(path)


def refuse(fields: Mapping[str, Any], table: Refusals, prefix: str = "") -> None:
    """Raises RequestError for the first field whose value would change the meaning."""
    for name, (harmless, why) in table.items():
        if name in fields and not harmless(fields[name]):
            raise unsupported(prefix + name, why)


def unsupported(param: str, why: str) -> RequestError:
    """The refusal of a field's value."""
    return RequestError(f"`{param}` with this value is not supported: {why}", param=param, code="unsupported_value")


def unreadable(kind: str, where: str, what: str = "content part") -> RequestError:
    """The refusal of content that is no text."""
    return RequestError(
        f"A {what} of type {kind[:40]!r} cannot be read: the model reads text only.",
        param=where,
        code="unsupported_content",
    )


def naming_field(error: PracticumError) -> str:
    """An error's text with its field, for shapes that have no place of their own for it."""
    return str(error) if not error.param or f"`{error.param}`" in str(error) else f"{error.param}: {error}"


def stop_strings(stops: Sequence[str], param: str) -> tuple[str, ...]:
    """Raises RequestError for too many, an empty or a long one."""
    if len(stops) > MOST_STOPS:
        raise RequestError(f"At most {MOST_STOPS} stop strings are possible.", param=param)
    if any(not text or len(text) > MOST_STOP_CHARS for text in stops):
        raise RequestError(f"A stop string has 1 to {MOST_STOP_CHARS} characters.", param=param)
    return tuple(stops)


def tool_spec(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> ToolSpec:
    """A tool, which takes nothing where its parameters are not said."""
    return ToolSpec(
        name=name, description=description or "", parameters=parameters or {"type": "object", "properties": {}}
    )


def unique(tools: Sequence[ToolSpec], param: str) -> tuple[ToolSpec, ...]:
    """Raises RequestError when two tools share a name; `param` has `{}` for the index."""
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise RequestError("Two tools have the same name.", param=param.format(index))
        seen.add(tool.name)
    return tuple(tools)


def joined(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Neighbouring assistant messages as one: providers whose answers are lists of items replay them one by one."""
    whole: list[Message] = []
    for message in messages:
        if message.role == "assistant" and whole and whole[-1].role == "assistant":
            last = whole.pop()
            message = replace(
                last,
                content=last.content + message.content,
                tool_calls=last.tool_calls + message.tool_calls,
                reasoning=last.reasoning + message.reasoning,
            )
        whole.append(message)
    return tuple(whole)


def arguments_text(arguments: Mapping[str, Any] | None) -> str:
    """Arguments that came as an object, as JSON text."""
    return json.dumps(arguments or {}, ensure_ascii=False)


def arguments_object(text: str) -> Any:
    """Arguments as an object. A number beyond what a float can hold becomes its own text: JSON has no infinity."""
    return json.loads(text, parse_float=_finite)


def dump(value: Any) -> bytes:
    """Compact JSON; lone surrogates leave as escapes."""
    return _COMPACT.encode(value).encode()


def sse(value: dict[str, Any], event: str | None = None) -> bytes:
    """One server-sent event, named where the provider names its events."""
    name = b"" if event is None else b"event: " + event.encode() + b"\n"
    return name + b"data: " + dump(value) + b"\n\n"


def _finite(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text
