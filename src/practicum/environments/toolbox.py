"""Methods as tools: the docstring is the description, the type hints are the schema, and arguments are checked by it.

Texts for numbers and the like are taken where Pydantic takes them: a small policy should not fail on a pair of quotes.
It runs in the environment's process and must not import the rest of Practicum.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from practicum.environments.environment import Environment

_TAKEN = frozenset(name for name in vars(Environment) if not name.startswith("_"))


_TOOLBOXES: dict[type[Environment], dict[str, Tool]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A method on offer. `schema` is OpenAI's form."""

    name: str
    schema: Mapping[str, Any]
    arguments: type[BaseModel]

    def call(self, world: Environment, arguments: dict[str, Any]) -> Any:
        """Call it. Raises ValueError naming the argument that does not fit; and what the method raises."""
        try:
            given = self.arguments.model_validate(arguments)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "arguments"
            raise ValueError(f"`{where}`: {first['msg']}") from None
        values = {name: getattr(given, name) for name in type(given).model_fields}
        return getattr(world, self.name)(**values)


def toolbox(kind: type[Environment]) -> dict[str, Tool]:
    """The tools of a class by name, in the order in which it defines them. Raises TypeError for one that cannot be."""
    if kind not in _TOOLBOXES:
        _TOOLBOXES[kind] = _toolbox(kind)
    return _TOOLBOXES[kind]


def _toolbox(kind: type[Environment]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for base in reversed(kind.__mro__):
        for name, member in vars(base).items():
            method = getattr(kind, name)
            if name.startswith("_") or name in _TAKEN or not inspect.isfunction(member) or not inspect.getdoc(method):
                continue
            found.pop(name, None)
            found[name] = _tool(kind, name, method)
    return found


def _tool(kind: type, name: str, method: Any) -> Tool:
    where = f"the tool {kind.__name__}.{name}"
    if inspect.iscoroutinefunction(method) or inspect.isgeneratorfunction(method):
        raise TypeError(f"{where} must be a plain method: environments are synchronous")
    hints = get_type_hints(method, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{where}: the parameter `{parameter.name}` cannot be given by name")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    model: type[BaseModel] = create_model("Arguments", __config__=_CONFIG, **fields)
    schema = _plain(model.model_json_schema())
    schema.setdefault("properties", {})
    function = {"name": name, "description": inspect.getdoc(method), "parameters": schema}
    return Tool(name=name, schema={"type": "function", "function": function}, arguments=model)


# Names with an underscore, and those that shadow a model's own attributes, are arguments like any other.
_CONFIG = ConfigDict(extra="forbid", arbitrary_types_allowed=False, protected_namespaces=())


def _plain(schema: Any) -> Any:
    """Without the titles that Pydantic makes of names: they cost tokens and say nothing."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for key, value in schema.items():
        if key == "properties":
            kept[key] = {name: _plain(one) for name, one in value.items()}
        elif key != "title" or not isinstance(value, str):
            kept[key] = _plain(value)
    return kept
