"""Canonical messages to token ids, through the model's own chat template.

`render` gives the ids of a whole prompt. `tail` gives only what comes behind an answer that was served: the template
renders the new conversation with a stand-in for that answer, and everything behind the stand-in is the tail. Whatever
closes the assistant turn is thereby included, and the sampled ids themselves are never rendered again.

Tools go through the template where a probe shows that it renders definitions, calls and results; otherwise they are
written into the text in a plain convention (`<tools>`, `<tool_call>`, `<tool_response>`), so that a call in the
history is in the ids under every template.

Invariants: a special token that a message merely spells out is encoded as ordinary text; rendering loses no tool call.
It must not know wire formats, sessions or the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from practicum.errors import ConfigError, RequestError
from practicum.renderers.parsing import AnswerParser, PlainParser
from practicum.renderers.template_engine import ChatTemplate
from practicum.renderers.tokenizer import ChatTokenizer, without_surrogates
from practicum.renderers.tool_calls import ToolCallParser
from practicum.types.messages import Message, ToolCall, ToolSpec

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_TOOLS_TEXT = (
    "The functions below are at your disposal, one JSON object a line:\n<tools>\n{specs}\n</tools>\n"
    "A call is a JSON object with the keys name and arguments, and each call stands in a block of its own:\n"
    '<tool_call>\n{{"name": "function-name", "arguments": {{"key": "value"}}}}\n</tool_call>'
)
# Private-use characters stand for special tokens that a message spells out, while the template runs.
_STAND_IN_BASE = 0xF8A00


class CannotExtend(RequestError):
    """The template gives no tail behind a served answer: the episode has to fork."""

    code = "template_cannot_extend"


class Renderer:
    """Renders conversations for one model. Thread-safe: it holds no state between calls.

    Args:
        tokenizer: the model's tokenizer.
        template: a Jinja chat template, or None for the built-in ChatML.

    Raises: ConfigError for a template that does not compile, or for None with a tokenizer that has no ChatML tokens.
    """

    def __init__(self, tokenizer: ChatTokenizer, template: str | None = None) -> None:
        if template is None and not {"<|im_start|>", "<|im_end|>"} <= tokenizer.specials:
            raise ConfigError("The model folder has no chat template, and its tokenizer has no ChatML tokens.")
        self.tokenizer = tokenizer
        self._template = ChatTemplate(template or CHATML, bos=tokenizer.bos, eos=tokenizer.eos)
        ordered = sorted(tokenizer.specials, key=len, reverse=True)
        self._stand_ins = {text: chr(_STAND_IN_BASE + index) for index, text in enumerate(ordered)}
        self._spelled = {mark: text for text, mark in self._stand_ins.items()}
        self._find_special = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self.native_tools = self._probe_tools()

    @classmethod
    def from_folder(cls, path: Path, tokenizer: ChatTokenizer) -> Renderer:
        """Use the chat template in a model folder: `chat_template.jinja`, or the key in `tokenizer_config.json`."""
        file, config = Path(path) / "chat_template.jinja", Path(path) / "tokenizer_config.json"
        if file.is_file():
            return cls(tokenizer, file.read_text(encoding="utf-8"))
        template = json.loads(config.read_text(encoding="utf-8")).get("chat_template") if config.is_file() else None
        if isinstance(template, list):
            named = {entry["name"]: entry["template"] for entry in template}
            template = named.get("default") or next(iter(named.values()))
        return cls(tokenizer, template)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an answer."""
        return tuple(sorted(self.tokenizer.eos_ids))

    def known(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Those of a request's options that the template reads; the others change nothing."""
        return {name: value for name, value in options.items() if name in self._template.options}

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), options: Mapping[str, Any] = {}
    ) -> list[int]:
        """Ids [P] of the conversation, ending where the assistant's next answer begins.

        `options` are variables for the template, such as `enable_thinking`; those that it does not know change nothing.

        Raises: RequestError when the template refuses the conversation.
        """
        return self._encode(self._text(messages, tools, options))

    def tail(
        self,
        before: Sequence[Message],
        rest: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        options: Mapping[str, Any] = {},
        *,
        stop_id: int | None,
    ) -> list[int]:
        """Ids to append behind a served prompt and completion so that `rest` follows.

        Args:
            before: the messages that the served prompt rendered.
            rest: the messages after the served answer.
            tools: as offered.
            options: as for `render`.
            stop_id: the stop id that ended the served completion, or None where it ended otherwise; what the template
                would write for it is left out, because it was sampled.

        Raises: CannotExtend when the template does not keep the answer in one recognisable place.
        """
        stand_in = _unused_word([*before, *rest], tools)
        try:
            text = self._text([*before, Message(role="assistant", content=stand_in), *rest], tools, options)
        except RequestError as error:
            raise CannotExtend(error.message) from error
        if text.count(stand_in) != 1:
            raise CannotExtend(f"The chat template renders a served answer {text.count(stand_in)} times.")
        closing = text.partition(stand_in)[2]
        if stop_id is not None:
            closing = closing.removeprefix(self.tokenizer.decode([stop_id]))
        return self._encode(closing)

    def parser(self, names: Collection[str], call_id: Callable[[int], str]) -> AnswerParser:
        """A parser for one answer.

        Args:
            names: functions that may be called; a call of another one is content.
            call_id: gives the id of the n-th call of the answer.
        """
        return ToolCallParser(names, call_id) if names else PlainParser()

    def _text(self, messages: Sequence[Message], tools: Sequence[ToolSpec], options: Mapping[str, Any]) -> str:
        if self.native_tools:
            return self._native_text(messages, tools, options)
        plain = [{"role": role, "content": self._guard(content)} for role, content in _plain_turns(messages)]
        if tools:
            explained = self._guard(_TOOLS_TEXT.format(specs="\n".join(_spec_json(tool) for tool in tools)))
            if plain and plain[0]["role"] == "system":
                plain[0]["content"] = f"{plain[0]['content']}\n\n{explained}".strip()
            else:
                plain.insert(0, {"role": "system", "content": explained})
        return self._template.render(plain, None, self.known(options))

    def _native_text(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], options: Mapping[str, Any] = {}
    ) -> str:
        rendered = [_native_message(m, self._guard) for m in messages]
        specs = [_guarded(_spec_dict(tool), self._guard) for tool in tools]
        return self._template.render(rendered, specs or None, self.known(options))

    def _guard(self, text: str) -> str:
        text = without_surrogates(text)
        if self._find_special is None:
            return text
        return self._find_special.sub(lambda found: self._stand_ins[found.group()], text)

    def _encode(self, text: str) -> list[int]:
        if not any(mark in text for mark in self._spelled):
            return self.tokenizer.encode(text)
        ids: list[int] = []
        for piece in re.split("([" + "".join(self._spelled) + "])", text):
            spelled = self._spelled.get(piece)
            ids.extend(self.tokenizer.encode(piece) if spelled is None else self.tokenizer.encode_plain(spelled))
        return ids

    def _probe_tools(self) -> bool:
        """Whether the template itself renders tool definitions, calls and results."""
        tool = ToolSpec(name="probe_spec", parameters={"type": "object", "properties": {"key": {"type": "string"}}})
        call = ToolCall(id="probe_id1", name="probe_call", arguments='{"key": "probe_argument"}')
        probe = [
            Message(role="user", content="question"),
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", content="probe_result", tool_call_id="probe_id1", name="probe_call"),
        ]
        try:
            text = self._native_text(probe, [tool])
        except RequestError:
            return False
        return all(word in text for word in ("probe_spec", "probe_call", "probe_argument", "probe_result"))


def _plain_turns(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Role and text of each turn; results of parallel calls share one, as templates with strict turns need it."""
    turns: list[tuple[str, str]] = []
    previous = ""
    for message in messages:
        if message.role == previous == "tool":
            turns[-1] = ("user", f"{turns[-1][1]}\n{_plain_content(message)}")
        else:
            turns.append(("user" if message.role == "tool" else message.role, _plain_content(message)))
        previous = message.role
    return turns


def _plain_content(message: Message) -> str:
    if message.role == "tool":
        return f"<tool_response>\n{message.content}\n</tool_response>"
    calls = [f"<tool_call>\n{_call_json(call)}\n</tool_call>" for call in message.tool_calls]
    return "\n".join([message.content, *calls] if message.content else calls) if calls else message.content


def _call_json(call: ToolCall) -> str:
    arguments = _parsed(call.arguments)
    return json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False)


def _spec_json(tool: ToolSpec) -> str:
    return json.dumps(_spec_dict(tool)["function"], ensure_ascii=False)


def _spec_dict(tool: ToolSpec) -> dict[str, Any]:
    described = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": described}


def _native_message(message: Message, guard: Any) -> dict[str, Any]:
    rendered: dict[str, Any] = {"role": message.role, "content": guard(message.content)}
    if message.reasoning:
        rendered["reasoning_content"] = guard(message.reasoning)
    if message.tool_calls:
        rendered["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _guarded(_parsed(call.arguments), guard)},
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        rendered |= {"tool_call_id": message.tool_call_id or "", "name": message.name or ""}
    return rendered


def _parsed(arguments: str) -> Any:
    """Arguments as templates want them: parsed, or the text itself where it is not JSON."""
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments


def _guarded(value: Any, guard: Any) -> Any:
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, dict):
        return {guard(key): _guarded(item, guard) for key, item in value.items()}
    return [_guarded(item, guard) for item in value] if isinstance(value, list) else value


def _unused_word(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
    taken = "\n".join([*(m.content + _plain_content(m) for m in messages), *(_spec_json(tool) for tool in tools)])
    number = 0
    while (word := f"served-answer-{number:06d}-stands-here") in taken:
        number += 1
    return word
