"""Google's schemas as JSON schema."""

from __future__ import annotations

from typing import Any

import pytest

from practicum.dialects.gemini_schema import json_schema


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"type": "STRING", "description": "STRING"}, {"type": "string", "description": "STRING"}),
        ({"type": "ARRAY", "items": {"type": "INTEGER"}, "minItems": "2"},
         {"type": "array", "items": {"type": "integer"}, "minItems": 2}),
        ({"type": "NUMBER", "nullable": True}, {"type": ["number", "null"]}),
        ({"type": "STRING", "enum": ["A"], "nullable": True}, {"type": ["string", "null"], "enum": ["A", None]}),
        ({"any_of": [{"type": "STRING"}], "nullable": True}, {"anyOf": [{"anyOf": [{"type": "string"}]},
                                                                        {"type": "null"}]}),
        ({"type": "OBJECT", "properties": {"type": {"type": "STRING"}, "max_items": {"type": "BOOLEAN"}}},
         {"type": "object", "properties": {"type": {"type": "string"}, "max_items": {"type": "boolean"}}}),
        ({"ref": "#/$defs/a", "defs": {"a": {"type": "OBJECT"}}}, {"$ref": "#/$defs/a",
                                                                   "$defs": {"a": {"type": "object"}}}),
        ({"type": ["string", "null"], "nullable": False}, {"type": ["string", "null"]}),
        (True, True),
    ],
)  # fmt: skip
def test_a_schema_says_the_same_in_json_schema(theirs: Any, ours: Any) -> None:
    assert json_schema(theirs) == ours


def test_properties_stand_in_the_order_asked_for() -> None:
    schema = {"type": "OBJECT", "properties": {"a": {}, "b": {}, "c": {}}, "propertyOrdering": ["c", "a", "x"]}
    assert list(json_schema(schema)["properties"]) == ["c", "a", "b"]
