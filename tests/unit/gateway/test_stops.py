"""Stop strings over streaming text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.gateway.stops import StopMatcher


def run(text: str, stops: tuple[str, ...], size: int = 1) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    out = "".join(matcher.feed(text[at : at + size]) for at in range(0, len(text), size))
    return out + matcher.finish(), matcher.hit


@pytest.mark.parametrize(
    ("text", "stops", "expected", "hit"),
    [
        ("hello", (), "hello", False),
        ("one STOP two", ("STOP",), "one ", True),
        ("aab", ("ab",), "a", True),
        ("ababac", ("abac",), "ab", True),
        ("STO", ("STOP",), "STO", False),
        ("x\n\ny", ("\n\n", "y"), "x", True),
    ],
)
def test_text_ends_in_front_of_the_stop(text: str, stops: tuple[str, ...], expected: str, hit: bool) -> None:
    assert run(text, stops) == (expected, hit)


def test_nothing_is_held_that_cannot_begin_a_stop() -> None:
    matcher = StopMatcher(("STOP",))
    assert matcher.feed("abcS") == "abc"
    assert matcher.feed("x") == "Sx"


@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.integers(1, 5))
def test_it_cuts_where_a_search_over_the_text_so_far_would(text: str, stops: list[str], size: int) -> None:
    out, hit = run(text, tuple(stops), size)
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    assert hit == bool(found)
    assert text.startswith(out)
    assert out == text if not found else not any(stop in out for stop in stops)


@given(st.text("abc", max_size=20), st.lists(st.text("abc", min_size=1, max_size=5), max_size=3), st.integers(2, 20))
def test_where_tokens_end_makes_no_difference(text: str, stops: list[str], size: int) -> None:
    one_by_one, in_chunks = StopMatcher(stops), StopMatcher(stops)
    outs = [
        "".join(m.feed(text[at : at + n]) for at in range(0, len(text), n)) + m.finish()
        for m, n in ((one_by_one, 1), (in_chunks, size))
    ]
    assert outs[0] == outs[1]
    assert one_by_one.matched == in_chunks.matched
