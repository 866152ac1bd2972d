"""Bytes in are bytes out, for whatever a harness or a model may produce."""

import math
import struct

from hypothesis import example, given
from hypothesis import strategies as st

from practicum.store.codec import (
    decode_ids,
    decode_json,
    decode_logprobs,
    decode_text,
    encode_ids,
    encode_json,
    encode_logprobs,
    encode_text,
)

any_text = st.text(st.characters(exclude_categories=()))
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text,
    lambda inner: st.lists(inner) | st.dictionaries(any_text, inner),
    max_leaves=10,
)


@given(any_text)
@example("\0")
@example("\ud83d\ude00")  # two lone surrogates that would read as one character if they were escaped
@example("\U0001f600")
def test_text_round_trip(text: str) -> None:
    assert decode_text(encode_text(text)) == text


@given(any_json)
@example({"a": "\ud83d\ude00\0", "b": [2**200, -0.0, float("inf")], "": None})
def test_json_round_trip(value: object) -> None:
    assert decode_json(encode_json(value)) == value


def test_json_keeps_the_order_of_keys() -> None:
    assert list(decode_json(encode_json({"b": 1, "a": 2}))) == ["b", "a"]


@given(st.lists(st.integers(0, 2**32 - 1)).map(tuple))
def test_ids_round_trip(ids: tuple[int, ...]) -> None:
    assert decode_ids(encode_ids(ids)) == ids


def test_ids_are_little_endian_uint32() -> None:
    assert encode_ids((1, 258)) == b"\x01\0\0\0\x02\x01\0\0"


def _bits(values: tuple[float | None, ...]) -> list[bytes | None]:
    return [None if value is None else struct.pack("<d", value) for value in values]


@given(st.lists(st.none() | st.floats()).map(tuple))
@example((None, 0.0, -0.0, -math.inf, math.nan, None))
def test_logprobs_round_trip_with_none_apart_from_every_float(values: tuple[float | None, ...]) -> None:
    assert _bits(decode_logprobs(encode_logprobs(values))) == _bits(values)
