"""A task's options for an adapter or a grader, read as that one's own record; one way to say which option is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from practicum.errors import UsageError

O = TypeVar("O", bound=BaseModel)  # noqa: E741


def read_options(kind: type[O], given: Mapping[str, Any], said: str) -> O:
    """`given` as a `kind`. Raises UsageError naming the option at fault; `said` says so, with {option} in it."""
    try:
        return kind.model_validate(dict(given), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "options"
        raise UsageError(
            f"{said.format(option=f'`{where}`')} is wrong: {first['msg']}.",
            hint=f"There are: {', '.join(kind.model_fields)}.",
            param=where,
        ) from error
