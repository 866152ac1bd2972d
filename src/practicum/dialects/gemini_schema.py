"""Google's schemas to JSON schema: an OpenAPI subset with types in capitals, whole numbers as text, and `nullable`.

What is JSON schema already passes through; keywords that JSON schema does not know stay, as annotations. It must not
know what a schema is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic.alias_generators import to_camel

_MAPS = ("properties", "$defs", "patternProperties")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")
_WHOLE = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_RENAMED = {"defs": "$defs", "ref": "$ref"}


def json_schema(schema: Any) -> Any:
    """The JSON schema that says the same; anything but an object is returned as it is."""
    if not isinstance(schema, dict):
        return schema
    made = {name: _value(name, value) for name, value in _named(schema).items()}
    if made.pop("nullable", None) is True:
        made = _or_null(made)
    order, properties = made.get("propertyOrdering"), made.get("properties")
    if isinstance(order, list) and isinstance(properties, dict):
        first = {name: properties[name] for name in order if isinstance(name, str) and name in properties}
        made["properties"] = first | properties
    return made


def _named(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords in JSON schema's spelling."""
    names = {name: _RENAMED.get(name, to_camel(name) if "_" in name else name) for name in schema}
    return {names[name]: value for name, value in schema.items()}


def _value(name: str, value: Any) -> Any:
    if name == "type":
        return value.lower() if isinstance(value, str) else value
    if name in _WHOLE and isinstance(value, str) and value.isdecimal():
        return int(value)
    if name in _MAPS and isinstance(value, dict):
        return _each(value, json_schema)
    if name in _LISTS and isinstance(value, list):
        return [json_schema(item) for item in value]
    return json_schema(value) if name in _SINGLE else value


def _each(schemas: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: change(schema) for name, schema in schemas.items()}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    kind = schema.get("type")
    if not isinstance(kind, str):
        return {"anyOf": [schema, {"type": "null"}]}
    made = {**schema, "type": [kind, "null"]}
    if isinstance(schema.get("enum"), list):
        made["enum"] = [*schema["enum"], None]
    return made
