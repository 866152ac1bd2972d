"""Lossless encodings between record fields and SQLite values: bytes in, bytes out.

Text that UTF-8 can hold (NUL included) is stored as TEXT. Text with lone surrogates is stored as a BLOB of
generalised UTF-8 (`surrogatepass`), so the value's SQLite type says how to read it back. ASCII escaping would not do:
two lone surrogates in a row come back from an escaped JSON string as one character. JSON is compact text under the
same rule; its object order, big integers and non-finite floats survive.

Id arrays are little-endian uint32. Logprobs are a little-endian uint32 count, a bitmap (bit 0 first) of which are
known, and one float64 per known entry: a missing logprob is apart from every float, NaN and -inf included.

It must not know tables, nor what the fields mean.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

SqlValue = str | bytes | int | float | None
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_LITTLE_ENDIAN = sys.byteorder == "little"


def encode_text(text: str) -> str | bytes:
    """TEXT where UTF-8 can hold it, otherwise a BLOB."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def decode_text(value: str | bytes) -> str:
    """The inverse of `encode_text`."""
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def encode_json(value: Any) -> str | bytes:
    """Compact JSON, as `encode_text` stores it. Raises TypeError for what JSON cannot hold."""
    return encode_text(_COMPACT.encode(value))


def decode_json(value: str | bytes) -> Any:
    """The inverse of `encode_json`; tuples come back as lists."""
    return json.loads(decode_text(value))


def encode_ids(ids: Sequence[int]) -> bytes:
    """`ids: [n]` as little-endian uint32. Raises OverflowError for one out of range."""
    return _packed("I", ids)


def decode_ids(blob: bytes) -> tuple[int, ...]:
    """The inverse of `encode_ids`."""
    return struct.unpack(f"<{len(blob) // 4}I", blob)


def encode_logprobs(logprobs: Sequence[float | None]) -> bytes:
    """`logprobs: [n]`, None kept apart from every float."""
    count = len(logprobs)
    bitmap = bytearray(((1 << count) - 1).to_bytes((count + 7) // 8, "little"))
    known: Sequence[Any] = logprobs
    if None in logprobs:
        known = [value for value in logprobs if value is not None]
        for index, value in enumerate(logprobs):
            if value is None:
                bitmap[index >> 3] &= ~(1 << (index & 7))
    return _packed("I", (count,)) + bitmap + _packed("d", known)


def _packed(kind: Literal["I", "d"], values: Iterable[Any]) -> bytes:
    """Little-endian uint32 or float64."""
    packed = array(kind, values)
    if not _LITTLE_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


def decode_logprobs(blob: bytes) -> tuple[float | None, ...]:
    """The inverse of `encode_logprobs`."""
    (count,) = struct.unpack_from("<I", blob)
    bitmap = blob[4 : 4 + (count + 7) // 8]
    floats = blob[4 + len(bitmap) :]
    known = iter(struct.unpack(f"<{len(floats) // 8}d", floats))
    return tuple(next(known) if bitmap[index >> 3] >> (index & 7) & 1 else None for index in range(count))


@dataclass(frozen=True, slots=True)
class Codec:
    """How one field crosses into SQLite and back. None is NULL on every codec."""

    encode: Callable[[Any], SqlValue]
    decode: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


PLAIN = Codec(_same, _same)
TEXT = Codec(encode_text, decode_text)
JSON = Codec(encode_json, decode_json)
IDS = Codec(encode_ids, decode_ids)
LOGPROBS = Codec(encode_logprobs, decode_logprobs)


def encode_row(record: Any, fields: dict[str, Codec]) -> list[SqlValue]:
    """The bindings of a record's fields, in order."""
    row = []
    for name, codec in fields.items():
        value = getattr(record, name)
        row.append(value if value is None or codec is PLAIN else codec.encode(value))
    return row


def decode_row(row: Sequence[Any], fields: dict[str, Codec]) -> dict[str, Any]:
    """Keyword arguments of a record, from a row that selects `fields` in order."""
    return {
        name: None if value is None else codec.decode(value)
        for (name, codec), value in zip(fields.items(), row, strict=True)
    }
