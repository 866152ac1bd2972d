"""Forced calls: a grammar for answers that are calls, in the form in which the model's family writes them.

A form whose arguments are JSON is a `CallForm`: the fixed text around a call's name and its arguments. A family with
another form of that kind is one more record; one whose arguments are no JSON has none, and its renderer refuses a
forced call by name.

The arguments follow the tool's schema. Keywords that the engine cannot enforce are left out of it: harnesses send
schemas with such, and a call that is checked for the rest beats none. Names and marks are forced literally. A mark that
is a special token is forced as that token, and a name that spells one is not; one that is an ordinary token with a name
like it may be either, since what engines take for special differs. A stop token at the end of a form is left out: what
ends an answer is the engine's, and it may follow where the grammar is complete.

The rule `start` is the whole answer. Reasoning that comes before it would stand there, as a rule in front of the
others. This module must not know wire formats or how an engine reads a grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from practicum.errors import RequestError
from practicum.types.messages import ToolSpec
from practicum.types.tokens import Constraint

# White space between JSON's marks, at most this much in one place: without a bound a weak model may never leave it.
WHITESPACE = r"[ \n\r\t]{1,40}"
# What looks like a token of its own.
_MARK = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """The text of an answer's calls: `open`, then the calls with `between` among them, then `close`.

    One call is `begin`, its name, `middle`, its arguments as a JSON object, `end`; where `begin` opens a JSON string,
    the name is written as in one. `parallel` is False for a family that writes one call an answer.
    """

    begin: str
    middle: str
    end: str
    open: str = ""
    close: str = ""
    between: str = ""
    parallel: bool = True

    @property
    def marks(self) -> frozenset[str]:
        """Its parts that may be a token of their own."""
        parts = (self.open, self.begin, self.middle, self.end, self.between, self.close)
        return frozenset(found[0] for part in parts for found in _MARK.finditer(part))


# As Hermes and Qwen models write it.
HERMES = CallForm(begin='<tool_call>\n{"name": "', middle='", "arguments": ', end="}\n</tool_call>", between="\n")


def call_grammar(
    form: CallForm,
    tools: Sequence[ToolSpec],
    *,
    several: bool,
    answer: Constraint | None,
    mark_ids: Mapping[str, int],
    specials: Collection[str],
    stops: Collection[str],
    source: str,
) -> Constraint:
    """The constraint under which an answer is one call, or some where `several`, or else a JSON `answer` where given.

    Args:
        form: how calls are written.
        tools: those of which one must be called; at least one.
        several: whether more than one call may follow.
        answer: what else the answer may be, of the kinds `json_schema` and `json_object`.
        mark_ids: parts of the form that are one token, and its id; some are `specials`.
        stops: texts of the tokens that end an answer.
        source: the request's field that asks for it.

    Raises: RequestError for a tool whose parameters describe no object.
    """

    def mark(text: str) -> str:
        return _literal(text, mark_ids, specials)

    end, close = _without(form.end, () if form.close else stops), _without(form.close, stops)
    more = f" ({mark(form.between)} call)*" if several and form.parallel else ""
    rules = [
        f"start: calls{' | answer' if answer else ''}",
        f"calls: {mark(form.open)} call{more} {mark(close)}",
        f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}",
    ]
    for index, tool in enumerate(tools):
        name = json.dumps(tool.name, ensure_ascii=False)[1:-1] if form.begin.endswith('"') else tool.name
        begin = f"{mark(form.begin)} {json.dumps(name)}"
        rules.append(f"call_{index}: {begin} {mark(form.middle)} arguments_{index} {mark(end)}")
        rules.append(f"arguments_{index}: %json {_json_rule(_object_schema(tool), lenient=True)}")
    if answer is not None:
        schema = json.loads(answer.text) if answer.kind == "json_schema" else {"type": "object"}
        rules.append(f"answer: %json {_json_rule(schema, lenient=not answer.strict)}")
    return Constraint(kind="grammar", text="\n".join(rules), source=source)


def _json_rule(schema: Mapping[str, Any], *, lenient: bool) -> str:
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE, "lenient": lenient}})


def _object_schema(tool: ToolSpec) -> dict[str, Any]:
    """The tool's parameters as the schema of an object: parsers take nothing else for arguments."""
    kind = tool.parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise RequestError(
            f"A call of {tool.name[:60]!r} cannot be forced: its parameters are no object.", param="tools"
        )
    return {**tool.parameters, "type": "object"}


def _literal(text: str, mark_ids: Mapping[str, int], specials: Collection[str]) -> str:
    """A piece of a form in Lark notation: text in quotes, marks by id."""
    return " ".join(_mark(piece, mark_ids, specials) for piece in _MARK.split(text) if piece)


def _mark(piece: str, mark_ids: Mapping[str, int], specials: Collection[str]) -> str:
    if piece not in mark_ids:
        return json.dumps(piece)
    token = f"<[{mark_ids[piece]}]>"
    return token if piece in specials else f"({json.dumps(piece)} | {token})"


def _without(mark: str, stops: Collection[str]) -> str:
    """A mark without the stop token at its end."""
    return next((mark.removesuffix(stop) for stop in stops if stop and mark.endswith(stop)), mark)
