"""R2: each form has one documented meaning or a clear error; none becomes 0; large values keep their precision."""

import math
from typing import Any

import pytest

from practicum.errors import RequestError
from practicum.feedback.values import check_form, check_value
from practicum.types.feedback import FORM_MEANING, FeedbackForm

LONGEST = 100


@pytest.mark.parametrize("value", [0, 1, -3.5, 257, 0.1 + 0.2, 2**53 + 1, 10**300, -0.0])
def test_r2_a_finite_score_is_kept_exactly(value: float) -> None:
    kept = check_value("score", value, LONGEST)
    assert kept == value
    assert type(kept) is type(value)


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, 10**400, None, True, False, "good job", "1", "", [1], {"score": 1}],
    ids=lambda value: ascii(value)[:12],
)
def test_r2_anything_else_is_no_score_and_never_zero(value: Any) -> None:
    with pytest.raises(RequestError, match="finite number") as caught:
        check_value("score", value, LONGEST)
    assert caught.value.param == "value"
    assert "`value`" in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [True, False, 1, 0, -1, "UP", "Up", "👍", "", None, ["up"]], ids=ascii)
def test_r2_a_thumb_is_up_or_down_and_nothing_else(value: Any) -> None:
    with pytest.raises(RequestError, match="`up` or `down`"):
        check_value("thumb", value, LONGEST)


def test_r2_both_thumbs() -> None:
    assert [check_value("thumb", value, LONGEST) for value in ("up", "down")] == ["up", "down"]


@pytest.mark.parametrize("form", ["comment", "correction"])
@pytest.mark.parametrize("value", ["", "  \n", None, 1, True, ["text"]], ids=ascii)
def test_r2_text_forms_need_text(form: FeedbackForm, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        check_value(form, value, LONGEST, "comment")
    assert caught.value.param == "comment"


def test_r2_a_comment_of_a_megabyte_says_how_long_it_may_be() -> None:
    with pytest.raises(RequestError, match="1000000 characters; a comment may have 100"):
        check_value("comment", "x" * 1_000_000, LONGEST)


def test_text_is_kept_as_it_is() -> None:
    text = "  a\0b\ud800\u202e "
    assert check_value("comment", text, LONGEST) == text


@pytest.mark.parametrize("value", [True, False, 0, 12.5, "refunded"])
def test_an_outcome_is_a_boolean_a_number_or_a_short_text(value: Any) -> None:
    assert check_value("outcome", value, LONGEST) is value


@pytest.mark.parametrize("value", [None, math.nan, "", "x" * 257, [], {}], ids=lambda value: ascii(value)[:8])
def test_anything_else_is_no_outcome(value: Any) -> None:
    with pytest.raises(RequestError):
        check_value("outcome", value, LONGEST)


def test_an_unknown_form_names_those_that_there_are() -> None:
    with pytest.raises(RequestError, match="score, thumb, comment, correction, outcome"):
        check_form("stars")
    assert [check_form(form) for form in FORM_MEANING] == list(FORM_MEANING)
