"""JSON as the standard has it: no NaN or infinity, no key twice, no nesting without end.

Python's reader accepts all of these; a record with one could not be written back, and two readers of a body with a key
twice may see two different requests. Lone surrogates are legal JSON and stay.
"""

from __future__ import annotations

import json
import math
from typing import Any

from practicum.errors import RequestError

DEEPEST = 100


def parse_object(raw: bytes) -> dict[str, Any]:
    """The object in `raw`. Raises RequestError naming what is wrong and what would be right, without the input."""
    try:
        value = _STRICT.decode(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _refusal("The body is not UTF-8.", "Send one JSON object in UTF-8.") from error
    except RecursionError as error:
        raise _too_deep() from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _refusal(f"The body is not JSON: {error.msg} at {where}.", "Send one JSON object.") from error
    except ValueError as error:  # an integer of thousands of digits
        raise _refusal("The body holds a number that is too long.", "Send it as text.") from error
    if not isinstance(value, dict):
        raise _refusal("The body is JSON, but no object.", "Send one JSON object.")
    _check_depth(value)
    return value


def _refuse_constant(word: str) -> float:
    raise _refusal(f"The body holds {word}, which is not JSON.", "Send a finite number, or leave the field out.")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _refusal(
            "The body holds a number beyond what a float can hold.", "Send a finite number within its range."
        )
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _refusal(f"A JSON object in the body has the key {twice[:60]!r} twice.", "Send each key once.")
    return members


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            item
            for parent in level
            for item in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> RequestError:
    return _refusal(f"The body is nested deeper than {DEEPEST} levels.", "Send a flatter one.")


def _refusal(message: str, hint: str) -> RequestError:
    return RequestError(message, hint=hint, code="invalid_json")
