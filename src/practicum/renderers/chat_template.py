"""Canonical messages to token ids, through the model's own chat template.

`render` gives the ids of a whole prompt. `tail` gives only what comes behind an answer that was served: the template
renders the new conversation with a stand-in for that answer, and everything behind the stand-in is the tail. Whatever
closes the assistant turn is thereby included, and the sampled ids themselves are never rendered again.

The template is the one in the model's folder, run as it stands: that is exact by construction, for families that
nobody has heard of too. The libraries that write templates anew in Python were looked at and not taken (see
`docs/models.md`).

Tools go through the template as far as probes show that it renders definitions, and calls with results; the rest is
written into the text in a plain convention (`plain.py`), so that a call in the history is in the ids under every
template. A conversation that the template refuses (two user turns in a row, say) is rendered in that convention too.

Invariants: a special token that a message merely spells out is encoded as ordinary text; rendering loses no tool call.
It must not know wire formats, sessions or the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from practicum.errors import ConfigError, RequestError, Unsupported
from practicum.renderers.call_forms import FORMS
from practicum.renderers.call_grammar import call_grammar, marks
from practicum.renderers.families import REASONING_TAGS, family_of, reasoning_of
from practicum.renderers.harmony import PLAIN_ANSWER, HarmonyParser
from practicum.renderers.markup import HERMES, CallMarkup
from practicum.renderers.native import Shape, guarded, native_messages, shape_of, spec_dict
from practicum.renderers.parsing import AnswerParser, PlainParser, ReasoningParser
from practicum.renderers.plain import example, explained, merged_turns, plain_turns
from practicum.renderers.template_engine import ChatTemplate
from practicum.renderers.tokenizer import ChatTokenizer, without_surrogates
from practicum.renderers.tool_calls import ToolCallParser
from practicum.types.messages import Message, ToolSpec
from practicum.types.tokens import Constraint

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Private-use characters stand for special tokens that a message spells out, while the template runs.
_STAND_IN_BASE = 0xF8A00
# Most ids that an opening tag and the white space behind it may take.
_LONGEST_OPENING = 16


class CannotExtend(RequestError):
    """The template gives no tail behind a served answer: the episode has to fork."""

    code = "template_cannot_extend"


class Renderer:
    """Renders conversations for one model. Thread-safe: it holds no state between calls.

    Args:
        tokenizer: the model's tokenizer.
        template: a Jinja chat template, or None for the built-in ChatML.
        family: a name of `families.FAMILIES`, or None for the one that the template and the tokens show.

    Raises: ConfigError for a template that does not compile, for None with a tokenizer that has no ChatML tokens, or
        for a family that is none.
    """

    def __init__(self, tokenizer: ChatTokenizer, template: str | None = None, *, family: str | None = None) -> None:
        if template is None and not {"<|im_start|>", "<|im_end|>"} <= tokenizer.specials:
            raise ConfigError("The model folder has no chat template, and its tokenizer has no ChatML tokens.")
        self.tokenizer = tokenizer
        source = template or CHATML
        self._template = ChatTemplate(source, bos=tokenizer.bos, eos=tokenizer.eos)
        ordered = sorted(tokenizer.specials, key=len, reverse=True)
        self._stand_ins = {text: chr(_STAND_IN_BASE + index) for index, text in enumerate(ordered)}
        self._spelled = {mark: text for text, mark in self._stand_ins.items()}
        self._find_special = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._find_stand_in = re.compile(f"([{''.join(self._spelled)}])") if ordered else None
        self.family = family_of(source, tokenizer.specials, family)
        self.reasoning = reasoning_of(self.family, source)
        self._shape = shape_of(lambda messages, shape: self._native_text(messages, (), shape))
        self.native_calls = self._shape is not None
        self.native_tools = self._probe_tools()
        own = family is not None or self.native_calls or self.native_tools
        self.markup: CallMarkup = self.family.markup if own else HERMES
        self._stops = [text for text in self.family.stops if text in tokenizer.specials]
        self._opens_reasoning = self._probe_reasoning()
        self._late_system = self._probe_late_system()

    @classmethod
    def from_folder(cls, path: Path, tokenizer: ChatTokenizer, *, family: str | None = None) -> Renderer:
        """Use the chat template in a model folder: `chat_template.jinja`, or the key in `tokenizer_config.json`."""
        file, config = Path(path) / "chat_template.jinja", Path(path) / "tokenizer_config.json"
        if file.is_file():
            return cls(tokenizer, file.read_text(encoding="utf-8"), family=family)
        template = json.loads(config.read_text(encoding="utf-8")).get("chat_template") if config.is_file() else None
        if isinstance(template, list):
            named = {entry["name"]: entry["template"] for entry in template}
            template = named.get("default") or next(iter(named.values()))
        return cls(tokenizer, template, family=family)

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an answer: the tokenizer's own, and those that the family ends a turn with."""
        ids = set(self.tokenizer.eos_ids)
        ids.update(*(self.tokenizer.encode(text) for text in self._stops))
        return tuple(sorted(ids))

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
        return self._encode(self.text(messages, tools, options))

    def tail(
        self,
        before: Sequence[Message],
        rest: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        options: Mapping[str, Any] = {},
        *,
        stop_id: int | None,
        answer: Message | None = None,
    ) -> list[int]:
        """Ids to append behind a served prompt and completion so that `rest` follows.

        Args:
            before: the messages that the served prompt rendered.
            rest: the messages after the served answer.
            tools: as offered.
            options: as for `render`.
            stop_id: the stop id that ended the served completion, or None where it ended otherwise; what the template
                would write for it is left out, because it was sampled.
            answer: the served answer as the caller replays it; templates that name a result's function need its calls.

        Raises: CannotExtend when the template does not keep the answer in one recognisable place.
        """
        stand_in = _unused_word([*before, *rest], tools)
        served = self._served(stand_in, rest, answer)
        try:
            text = self.text([*before, served, *rest], tools, options)
        except RequestError as error:
            raise CannotExtend(error.message) from error
        if text.count(stand_in) != 1:
            raise CannotExtend(f"The chat template renders a served answer {text.count(stand_in)} times.")
        closing = text.partition(stand_in)[2]
        if served.tool_calls:
            closing = self._from_end_of_turn(closing)
        if stop_id is not None:
            closing = self._without_end(closing, self.tokenizer.decode([stop_id]))
        # Behind a special token, as it will stand: some tokenizers encode the beginning of a text differently.
        anchor = self.tokenizer.encode(self.tokenizer.eos)
        return self._encode(self.tokenizer.eos + closing)[len(anchor) :]

    def spelled_out(self, text: str) -> str:
        """A prompt's text with the private-use characters replaced by what they stand for."""
        return "".join(self._spelled.get(letter, letter) for letter in text)

    def parser(
        self, names: Collection[str], call_id: Callable[[int], str], *, prompt_ids: Sequence[int] | None = None
    ) -> AnswerParser:
        """A parser for one answer.

        Args:
            names: functions that may be called; a call of another one is content. A mapping gives their JSON schemas,
                which the families that write bare values need to tell text from numbers.
            call_id: gives the id of the n-th call of the answer.
            prompt_ids: [P] what the answer follows: it shows whether the reasoning is open already, which may differ
                from prompt to prompt. None goes by a prompt of one question.
        """
        if self.markup.kind == "harmony":
            return HarmonyParser(names, call_id)
        calls = ToolCallParser(names, call_id, FORMS[self.markup.kind]()) if names else PlainParser()
        tags = REASONING_TAGS.get(self.reasoning)
        if tags is None:
            return calls
        opened = self._opens_reasoning if prompt_ids is None else self._ends_inside(prompt_ids, tags[0])
        return ReasoningParser(calls, tags, opened=opened)

    def answer_opening(self, prompt_ids: Sequence[int]) -> str:
        """What an answer without reasoning begins with behind a prompt [P]: its channel, or an end of reasoning."""
        if self.markup.kind == "harmony":
            return PLAIN_ANSWER
        tags = REASONING_TAGS.get(self.reasoning)
        return f"\n{tags[1]}\n\n" if tags and self._ends_inside(prompt_ids, tags[0]) else ""

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), options: Mapping[str, Any] = {}) -> str:
        """The prompt as text, spelled-out special tokens as private-use characters. Raises RequestError."""
        if not tools or self.native_tools:
            return self._text(messages, tools, options)
        shown = example(self.markup)
        told = self._text(explained(messages, tools, self.markup), (), options)
        return told.replace(self._guard(shown), shown, 1)

    def _ends_inside(self, prompt_ids: Sequence[int], tag: str) -> bool:
        return self.tokenizer.decode(prompt_ids[-_LONGEST_OPENING:]).rstrip().endswith(tag)

    def call_constraint(
        self, tools: Sequence[ToolSpec], *, several: bool, answer: Constraint | None, source: str
    ) -> Constraint:
        """The constraint under which an answer calls one of `tools`, or else is the JSON of `answer` where given.

        Raises: Unsupported where this model's calls cannot be forced; RequestError for a tool that cannot be.
        """
        if self.markup.arguments != "json":
            raise Unsupported("A call cannot be forced in the form in which this model writes calls.", param=source)
        if answer is not None and (self.markup.open + self.markup.begin).startswith("{"):
            raise Unsupported(
                "This model writes calls as bare JSON, so that a JSON answer could not be told from a call.",
                hint="Offer no tools, or forbid calls, where the answer must be JSON.",
                param=source,
            )
        ids = {mark: self.tokenizer.encode(mark) for mark in marks(self.markup)}
        return call_grammar(
            self.markup,
            tools,
            several=several,
            answer=answer,
            mark_ids={mark: encoded[0] for mark, encoded in ids.items() if len(encoded) == 1},
            specials=self.tokenizer.specials,
            stops=[self.tokenizer.decode([token]) for token in self.stop_ids],
            source=source,
        )

    def _text(self, messages: Sequence[Message], tools: Sequence[ToolSpec], options: Mapping[str, Any]) -> str:
        if not self._late_system:
            lead = next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))
            later = [replace(m, role="user") if m.role == "system" else m for m in messages[lead:]]
            messages = [*messages[:lead], *later]
        try:
            if self._shape is not None:
                return self._native_text(messages, tools, self._shape, options)
            return self._plain_text(plain_turns(messages, self.markup, self._guard), tools, options)
        except RequestError as refused:
            try:
                turns = merged_turns(plain_turns(messages, self.markup, self._guard))
                return self._plain_text(turns, tools, options)
            except RequestError:
                raise refused from None

    def _native_text(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        shape: Shape,
        options: Mapping[str, Any] = {},
    ) -> str:
        turns = native_messages(messages, shape, self._guard)
        return self._template.render(turns, self._specs(tools), self.known(options))

    def _plain_text(
        self, turns: Sequence[Mapping[str, str]], tools: Sequence[ToolSpec], options: Mapping[str, Any] = {}
    ) -> str:
        return self._template.render(turns, self._specs(tools), self.known(options))

    def _specs(self, tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
        return [guarded(spec_dict(tool), self._guard) for tool in tools] or None

    def _served(self, stand_in: str, rest: Sequence[Message], answer: Message | None) -> Message:
        """What stands for the served answer: text, or a call where the template wants one before a result."""
        calls = answer.tool_calls if answer is not None else ()
        needed = self._shape is not None and self._shape.results_need_call
        if not needed or not calls or not rest or rest[0].role != "tool":
            return Message(role="assistant", content=stand_in)
        if len(calls) > 1:
            raise CannotExtend("The chat template wants each result right behind its call; this answer has several.")
        return Message(role="assistant", tool_calls=(replace(calls[0], arguments=json.dumps({"served": stand_in})),))

    def _from_end_of_turn(self, closing: str) -> str:
        found = [at for end in self.family.ends or (self.tokenizer.eos,) if (at := closing.find(end)) >= 0]
        if not found:
            raise CannotExtend("The chat template does not close a served call with a known token.")
        return closing[min(found) :]

    def _without_end(self, closing: str, sampled: str) -> str:
        """The closing without its end of turn, where the sampled token is that or stands for it."""
        for end in (sampled, *(self.family.ends if sampled in self.family.ends else ())):
            if closing.startswith(end):
                return closing[len(end) :]
        return closing

    def _guard(self, text: str) -> str:
        text = without_surrogates(text)
        if self._find_special is None:
            return text
        return self._find_special.sub(lambda found: self._stand_ins[found.group()], text)

    def _encode(self, text: str) -> list[int]:
        if self._find_stand_in is None:
            return self.tokenizer.encode(text)
        ids: list[int] = []
        for piece in self._find_stand_in.split(text):
            spelled = self._spelled.get(piece)
            ids.extend(self.tokenizer.encode(piece) if spelled is None else self.tokenizer.encode_plain(spelled))
        return ids

    def _probe_tools(self) -> bool:
        """Whether the template itself renders tool definitions."""
        tool = ToolSpec(name="probe_spec", parameters={"type": "object", "properties": {"key": {"type": "string"}}})
        try:
            text = self._plain_text([{"role": "user", "content": "question"}], [tool])
        except RequestError:
            return False
        return "probe_spec" in text

    def _probe_late_system(self) -> bool:
        """Whether a system message behind others comes out; elsewhere it is a user's."""
        turns = [{"role": role, "content": f"probe_{role}"} for role in ("user", "assistant", "user", "system")]
        try:
            return "probe_system" in self._plain_text(turns, ())
        except RequestError:
            return False

    def _probe_reasoning(self) -> bool:
        """Whether a prompt ends inside the reasoning."""
        tags = REASONING_TAGS.get(self.reasoning)
        try:
            text = self._plain_text([{"role": "user", "content": "question"}], ())
        except RequestError:
            return False
        return tags is not None and text.rstrip().endswith(tags[0])


def _unused_word(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
    texts = [text for m in messages for text in (m.content, m.reasoning, *(call.arguments for call in m.tool_calls))]
    taken = "\n".join([*texts, *(json.dumps(spec_dict(tool)) for tool in tools)])
    number = 0
    while (word := f"served-answer-{number:06d}-stands-here") in taken:
        number += 1
    return word
