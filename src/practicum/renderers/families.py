"""The model families, in one table: how each writes calls, reasoning and the end of a turn, and what shows it.

A family is recognised by what the model folder itself says, its chat template and its added tokens, never by the
model's name: the first row of `FAMILIES` whose evidence is all there. It must not know messages or parsing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from practicum.errors import ConfigError
from practicum.renderers import markup
from practicum.renderers.markup import CallMarkup

ReasoningKind = Literal["none", "think", "think_brackets", "harmony"]
REASONING_TAGS = {"think": ("<think>", "</think>"), "think_brackets": ("[THINK]", "[/THINK]")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One row of the table.

    `in_template` and `in_tokens` are the evidence: texts that all stand in the template, tokens that the tokenizer all
    has. `ends` are tokens that close an assistant's turn in each other's place: which one is sampled depends on what
    comes next (a call, an answer), while a template always writes the same. `stops` are those that end an answer.
    """

    name: str
    markup: CallMarkup
    in_template: tuple[str, ...] = ()
    in_tokens: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()


FAMILIES: tuple[Family, ...] = (
    # gpt-oss: channels; `<|end|>` closes a message in the history, `<|return|>` or `<|call|>` the sampled one.
    Family(
        name="harmony",
        markup=markup.HARMONY,
        in_tokens=("<|channel|>", "<|message|>", "<|call|>"),
        ends=("<|return|>", "<|call|>", "<|end|>"),
        stops=("<|return|>", "<|call|>"),
    ),
    # DeepSeek V3 and R1 put the arguments into a fenced block; V3.1 and later do not.
    Family(
        name="deepseek",
        markup=markup.DEEPSEEK,
        in_template=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "```json"),
    ),
    Family(name="deepseek_v31", markup=markup.DEEPSEEK_V31, in_template=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>")),
    # Mistral: an array behind one token; since Mistral Small 3.2 a token before each call and before its arguments.
    Family(name="mistral_args", markup=markup.MISTRAL_ARGS, in_template=("[TOOL_CALLS]", "[ARGS]")),
    Family(name="mistral", markup=markup.MISTRAL, in_template=("[TOOL_CALLS]",)),
    # Qwen 3.5 and Qwen 3 Coder write bare parameters.
    Family(name="xml", markup=markup.XML, in_template=("<tool_call>", "<function=", "<parameter=")),
    # Qwen 2.5 and 3, SmolLM3, Hermes.
    Family(name="hermes", markup=markup.HERMES, in_template=("<tool_call>",)),
    # Llama 3.1 to 3.3: bare JSON with `parameters`; `<|eom_id|>` where it waits for a result, `<|eot_id|>` elsewhere.
    Family(
        name="llama",
        markup=markup.LLAMA,
        in_template=('"parameters": ', "ipython"),
        in_tokens=("<|eot_id|>",),
        ends=("<|eot_id|>", "<|eom_id|>"),
        stops=("<|eot_id|>", "<|eom_id|>"),
    ),
    # Llama 3 without tools: our own convention for calls, and the same ends.
    Family(
        name="llama_plain",
        markup=markup.HERMES,
        in_tokens=("<|eot_id|>", "<|eom_id|>"),
        ends=("<|eot_id|>", "<|eom_id|>"),
        stops=("<|eot_id|>", "<|eom_id|>"),
    ),
    # Gemma 3, SmolLM2 and every template that knows no tools: our own convention, which the system message explains.
    Family(name="plain", markup=markup.HERMES),
)
FAMILY_NAMES = tuple(family.name for family in FAMILIES)


def family_of(template: str, tokens: Collection[str], override: str | None = None) -> Family:
    """The first family whose evidence is all there, or the one that the configuration names.

    Raises: ConfigError for a name that is none.
    """
    if override is not None:
        named = next((family for family in FAMILIES if family.name == override), None)
        if named is None:
            raise ConfigError(f"model.parser {override!r} is none of {', '.join(FAMILY_NAMES)}.")
        return named
    return next(
        family
        for family in FAMILIES
        if all(text in template for text in family.in_template) and all(text in tokens for text in family.in_tokens)
    )


def reasoning_of(family: Family, template: str) -> ReasoningKind:
    """How the model's reasoning shows in its answers: the tags that its template handles."""
    if family.markup.kind == "harmony":
        return "harmony"
    if "</think>" in template:
        return "think"
    return "think_brackets" if "[THINK]" in template else "none"
