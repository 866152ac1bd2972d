"""What each form of feedback accepts: one meaning each, and a clear error for everything else.

Nothing is coerced: a value that does not fit never becomes 0, and a number keeps the precision it came with.
"""

from __future__ import annotations

import math
from typing import Any

from practicum.errors import RequestError
from practicum.types.feedback import FORM_MEANING, FeedbackForm

LONGEST_OUTCOME_CHARS = 256
LONGEST_NAME_CHARS = 256


def check_value(form: FeedbackForm, value: Any, max_comment_chars: int, param: str = "value") -> Any:
    """`value` as it is kept.

    Args:
        form: what it claims to be.
        value: what came.
        max_comment_chars: longest comment or correction.
        param: how the caller names the value, for the error.

    Raises: RequestError naming `param`.
    """
    if form == "score":
        return _number(value, form, param)
    if form == "thumb":
        if value not in ("up", "down") or not isinstance(value, str):
            raise _refusal(form, value, param)
        return value
    if form in ("comment", "correction"):
        return _text(value, form, param, max_comment_chars)
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, form, param, LONGEST_OUTCOME_CHARS)
    return _number(value, form, param)


def check_form(form: str) -> FeedbackForm:
    """`form` if it is one. Raises RequestError."""
    if form not in FORM_MEANING:
        raise RequestError(f"There is no feedback form {form!r}.", hint=f"Forms are {', '.join(FORM_MEANING)}.")
    return form


def check_name(name: Any, param: str) -> str:
    """An id or a user's name: non-empty text of bounded length. Raises RequestError naming `param`."""
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME_CHARS:
        raise RequestError(f"`{param}` must be non-empty text of at most {LONGEST_NAME_CHARS} characters.", param=param)
    return name


def _number(value: Any, form: FeedbackForm, param: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refusal(form, value, param)
    try:
        finite = math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        raise _refusal(form, value, param)
    return value


def _text(value: Any, form: FeedbackForm, param: str, longest: int) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _refusal(form, value, param)
    if len(value) > longest:
        raise RequestError(
            f"`{param}` has {len(value)} characters; a {form} may have {longest}.", hint="Shorten it.", param=param
        )
    return value


def _refusal(form: FeedbackForm, value: Any, param: str) -> RequestError:
    got = "nothing" if value is None else f"{type(value).__name__} {_shown(value)}"
    return RequestError(
        f"`{param}` does not fit a {form}: got {got}.", hint=f"A {form} is {FORM_MEANING[form]}.", param=param
    )


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"of {value.bit_length()} bits"
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
