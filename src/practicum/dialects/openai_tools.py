"""OpenAI's tools that are no plain functions, offered as functions, and calls of them turned back. Both APIs share it.

A free-form tool (`custom`) takes text: the model sees a function whose one argument, `input`, is that text. A namespace
holds tools: each is offered as `NAMESPACE.NAME`. OpenAI's names have no dot, so that is no other tool's name.

A format that is a regular expression stands in the schema, and a demanded call follows it. A Lark grammar cannot be
enforced inside a JSON string: the model is told it, and that is all.

Invariant: what a call in the history becomes depends on that call alone, so it is the same whatever tools are on offer.
It must not know which of the two APIs a request came through.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from practicum.dialects import wire as shared
from practicum.dialects.demands import Choice
from practicum.dialects.request import Declared
from practicum.errors import RequestError
from practicum.types.messages import ToolSpec

_INPUT = "input"
_FREE = f"Its argument `{_INPUT}` is free text, not JSON."
_LANGUAGES = {"lark": "Lark grammar", "regex": "regular expression"}
_CHOICES = "offered are `auto`, `none`, `required`, a function, a custom tool and allowed tools."


def offered_name(name: str, namespace: str | None) -> str:
    """The name under which the model knows a tool."""
    return f"{namespace}.{name}" if namespace else name


def free_form(name: str, description: str | None, form: Any, where: str) -> ToolSpec:
    """A custom tool as a function. Raises RequestError, whose `param` begins with `where`, for an unknown format."""
    says, schema = _FREE, {"type": "string"}
    syntax, definition = _grammar(form, where)
    if syntax:
        says += f" It must match this {_LANGUAGES[syntax]}:\n{definition}"
    if syntax == "regex":
        schema["pattern"] = f"^(?:{definition})$"
    return ToolSpec(
        name=name,
        description=f"{description}\n\n{says}" if description else says,
        parameters={
            "type": "object", "properties": {_INPUT: schema}, "required": [_INPUT], "additionalProperties": False,
        },
    )  # fmt: skip


def _grammar(form: Any, where: str) -> tuple[str, str]:
    """Syntax and definition, both empty where any text will do. Chat completions wrap them in `grammar`."""
    kind = form.get("type") if isinstance(form, dict) else None
    if form is None or kind == "text":
        return "", ""
    inner = form.get("grammar", form) if isinstance(form, dict) else None
    given = inner if isinstance(inner, dict) else {}
    syntax, definition = given.get("syntax"), given.get("definition")
    if kind != "grammar" or not isinstance(syntax, str) or syntax not in _LANGUAGES:
        raise shared.unsupported(f"{where}.format", "it is `text`, or a `grammar` whose syntax is `lark` or `regex`.")
    if not isinstance(definition, str) or not definition:
        raise RequestError("The definition of this grammar is missing.", param=f"{where}.format")
    return syntax, definition


def in_namespace(tool: ToolSpec, namespace: str, description: str | None) -> ToolSpec:
    """A tool of a namespace, with what is said of the whole of it."""
    about = f"{namespace}: {description}" if description else ""
    text = "\n\n".join(filter(None, (tool.description, about)))
    return replace(tool, name=offered_name(tool.name, namespace), description=text)


def text_of(arguments: str) -> str:
    """The text in the arguments of a free-form tool's call; the arguments as they are where there is none in them."""
    try:
        given = json.loads(arguments)
    except ValueError:
        return arguments
    text = given.get(_INPUT) if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


def arguments_of(text: str) -> str:
    """The arguments of a free-form tool's call, of which `text_of` is the inverse."""
    return shared.arguments_text({_INPUT: text})


def choice(value: Any, declared: Mapping[str, Declared]) -> Choice:
    """`tool_choice` of chat completions, or of responses, where name and list are not wrapped.

    `declared` has every tool on offer. Raises: RequestError for a choice or a tool that is not offered.
    """
    if value in (None, "auto", "none", "required"):
        return Choice(names=() if value == "none" else None, must=value == "required")
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in ("function", "custom"):
        return Choice(names=_chosen(value, declared), must=True, one=True)
    if kind == "allowed_tools":
        inner = value.get("allowed_tools", value)
        tools = inner.get("tools") if isinstance(inner, dict) else None
        if not isinstance(tools, list) or inner.get("mode") not in ("auto", "required"):
            raise RequestError("`allowed_tools` has a mode, `auto` or `required`, and tools.", param="tool_choice")
        names = [name for tool in _ours(tools) for name in _chosen(tool, declared)]
        return Choice(names=tuple(names), must=inner["mode"] == "required")
    raise shared.unsupported("tool_choice", _CHOICES)


def _ours(tools: Iterable[Any]) -> Iterable[dict[str, Any]]:
    """Those of the tools that are not the provider's own."""
    return (t for t in tools if isinstance(t, dict) and t.get("type") in ("function", "custom", "namespace"))


def _chosen(value: Mapping[str, Any], declared: Mapping[str, Declared]) -> tuple[str, ...]:
    """The names under which the model knows what is named: one, or those of a whole namespace.

    A name without its namespace means the tool outside of all, or else the only one of that name.
    """
    kind = value["type"]
    inner = value.get(kind, value)
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str):
        raise RequestError(f"The name of this {kind} is missing.", param="tool_choice")
    if kind == "namespace":
        found = [offered for offered, tool in declared.items() if tool.namespace == name]
    else:
        alike = {o: t for o, t in declared.items() if t.name == name and t.free_form == (kind == "custom")}
        where = inner.get("namespace")
        found = [offered for offered, tool in alike.items() if tool.namespace == where] or list(
            alike if not where else ()
        )
        if len(found) > 1:
            raise RequestError(
                f"`tool_choice` names {name[:60]!r}, which several namespaces have.",
                hint="Send its `namespace` beside the name.",
                param="tool_choice",
            )
    if not found:
        raise RequestError(f"`tool_choice` names {name[:60]!r}, which is not among the tools.", param="tool_choice")
    return tuple(found)
