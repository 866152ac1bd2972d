"""Which ids of a rendered prompt belong to which message; all others are the template's own.

The conversation is rendered twice, once with a private-use character around each message's words. Without those
characters the two texts must be the same: a template that reacts to them has its messages marked one by one, and a
message that still does not show has no span.

Invariant: the ids are those of `Renderer.render`. It must not know families.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from practicum.errors import RequestError
from practicum.renderers.chat_template import Renderer
from practicum.renderers.native import named_results
from practicum.renderers.tokenizer import IncrementalDecoder
from practicum.types.messages import Message, ToolCall, ToolSpec

_FIRST_MARK = 0xF0000
_MARKS = re.compile("[\U000f0000-\U000f7fff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spanned:
    """A prompt's ids [P] and, for each message, the half-open range of ids that are its words.

    A token that a message shares with the template counts as the template's where it begins before the message. None
    stands for a message without words, and for one that the template rewrites.
    """

    ids: tuple[int, ...]
    spans: tuple[tuple[int, int] | None, ...]


def render_with_spans(renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Spanned:
    """Render a conversation and say which ids are whose. Raises RequestError when the template refuses it."""
    ids = renderer.render(messages, tools)
    spoken = [_unmarked(message) for message in named_results(messages)]
    text = renderer.text(spoken, tools)
    found = _places(renderer, spoken, tools, range(len(spoken)), text)
    if found is None:
        each = [_places(renderer, spoken, tools, [index], text) or {} for index in range(len(spoken))]
        found = {index: place for places in each for index, place in places.items()}
    starts, decoded = _starts(renderer, ids)
    spelled = renderer.spelled_out(text)
    normal = spelled if decoded == spelled else unicodedata.normalize("NFC", spelled)
    spans: list[tuple[int, int] | None] = [None] * len(spoken)
    if decoded == normal:
        for index, (start, stop) in found.items():
            at, end = (len(_as(decoded, spelled, renderer.spelled_out(text[:place]))) for place in (start, stop))
            spans[index] = (bisect_left(starts, at), bisect_left(starts, end))
    return Spanned(ids=tuple(ids), spans=tuple(spans))


def _places(
    renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSpec], which: Sequence[int], text: str
) -> dict[int, tuple[int, int]] | None:
    """Where in `text` the words of the messages `which` stand; None where marking them changes the text."""
    marked = [_marked(m, chr(_FIRST_MARK + i)) if i in which else m for i, m in enumerate(messages)]
    try:
        rendered = renderer.text(marked, tools)
    except RequestError:
        return None
    if _MARKS.sub("", rendered) != text:
        return None
    places: dict[int, tuple[int, int]] = {}
    for number, found in enumerate(_MARKS.finditer(rendered)):
        index, at = ord(found.group()) - _FIRST_MARK, found.start() - number
        places[index] = (places.get(index, (at, at))[0], at)
    return places


def _marked(message: Message, mark: str) -> Message:
    calls = tuple(_marked_call(call, mark) for call in message.tool_calls)
    content, reasoning = _around(message.content, mark), _around(message.reasoning, mark)
    return replace(message, content=content, reasoning=reasoning, tool_calls=calls)


def _marked_call(call: ToolCall, mark: str) -> ToolCall:
    first, last = call.arguments.find('"'), call.arguments.rfind('"')
    arguments = call.arguments
    if first < last:
        arguments = f"{arguments[: first + 1]}{mark}{arguments[first + 1 : last]}{mark}{arguments[last:]}"
    return replace(call, name=mark + call.name + mark, arguments=arguments)


def _around(text: str, mark: str) -> str:
    """The mark inside the white space around a text, which templates cut off."""
    core = text.strip()
    lead = len(text) - len(text.lstrip())
    return f"{text[:lead]}{mark}{core}{mark}{text[lead + len(core) :]}" if core else text


def _unmarked(message: Message) -> Message:
    return replace(message, content=_MARKS.sub("\ufffd", message.content))


def _starts(renderer: Renderer, ids: Sequence[int]) -> tuple[list[int], str]:
    """Where each id's text begins, and the whole text."""
    decoder = IncrementalDecoder(renderer.tokenizer)
    starts: list[int] = []
    text = ""
    for token in ids:
        starts.append(len(text))
        text += decoder.feed([token])
    return starts, text + decoder.finish()


def _as(decoded: str, spelled: str, part: str) -> str:
    return part if decoded == spelled else unicodedata.normalize("NFC", part)
