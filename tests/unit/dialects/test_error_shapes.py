"""Every error of the tree in every provider's own shape, against a golden file that was read through by hand.

`python -m tests.unit.dialects.test_error_shapes` writes it anew; read the difference before you keep it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from practicum.dialects.registry import DIALECTS
from practicum.errors import ContextOverflow, PracticumError, RequestError

GOLDEN = Path(__file__).parents[2] / "golden" / "error_shapes.json"
_WITH_FIELD: dict[type[PracticumError], str] = {RequestError: "temperature", ContextOverflow: "messages"}


def tree(kind: type[PracticumError] = PracticumError) -> Iterator[type[PracticumError]]:
    """Every class of errors.py; others may have subclasses of their own."""
    if kind.__module__ == "practicum.errors":
        yield kind
        for child in kind.__subclasses__():
            yield from tree(child)


def shapes() -> dict[str, Any]:
    """Status and body by class and dialect."""
    made = {kind: kind("What happened.", hint="What to do.", param=_WITH_FIELD.get(kind)) for kind in tree()}
    return {
        kind.__name__: {
            "status": error.status,
            **{name: dialect.error_body(error) for name, dialect in DIALECTS.items()},
        }
        for kind, error in made.items()
    }


def test_every_error_has_each_providers_shape() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    found = shapes()
    assert found.keys() == golden.keys(), "an error was added or removed: write the golden file anew"
    for name, shape in found.items():
        assert shape == golden[name], name


def test_no_provider_error_says_other_than_its_status() -> None:
    """What SDKs decide by: whether to retry, and which of their exceptions to raise."""
    for name, shape in shapes().items():
        status = shape["status"]
        assert (status >= 500) == (shape["openai_chat"]["error"]["type"] == "server_error"), name
        assert (status >= 500) == (shape["anthropic_messages"]["error"]["type"] == "api_error"), name
        assert shape["gemini"]["error"]["code"] == status, name


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(shapes(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
