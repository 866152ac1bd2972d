"""Every kind of answer a model can give, and what a provider's SDK must make of it: one table for all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from practicum.engines.scripted import ScriptedCall, ScriptedSampler, Step, play
from practicum.renderers import ByteTokenizer
from practicum.types.calls import ModelCall

THOUGHT = "Let me see: 中é."
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
CALLS = (("bash", {"command": "ls", "n": 1.5, "deep": {"ü": [None, True]}}), ("web.find-2", {}))

BROKEN = {
    "unclosed": '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}',
    "no JSON": 'See: <tool_call>{"name": "bash", "arguments": {"command": </tool_call> done',
    "unknown tool": '<tool_call>{"name": "nuke", "arguments": {}}</tool_call>',
}


def step(content: str, *calls: tuple[str, dict[str, Any]], **fields: Any) -> Step:
    """A turn of the script."""
    return Step(content=content, tool_calls=[ScriptedCall(name=n, arguments=a) for n, a in calls], **fields)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One answer: what is sampled, what is asked, and what must come out."""

    step: Step
    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    thought: str = ""
    end: Literal["stop", "length", "calls", "stop string"] = "stop"
    tools: bool = False
    may_call: bool = True
    one_call: bool = False
    stop: str | None = None
    max_tokens: int = 2000
    not_for: tuple[str, ...] = field(default=())


ANSWERS: dict[str, Case] = {
    "text": Case(step=step("Ünïcode 🦊\n\tand a tab"), text="Ünïcode 🦊\n\tand a tab"),
    "nothing": Case(step=step("")),
    "a call": Case(step=step("", CALLS[0]), calls=CALLS[:1], end="calls", tools=True),
    "a call without arguments": Case(step=step("", CALLS[1]), calls=CALLS[1:], end="calls", tools=True),
    "text and parallel calls": Case(step=step("I look.", *CALLS), text="I look.", calls=CALLS, end="calls", tools=True),
    "one call where one was asked for": Case(
        step=step("", *CALLS), calls=CALLS[:1], end="calls", tools=True, one_call=True, not_for=("gemini",)
    ),
    "tools that were not needed": Case(step=step("No."), text="No.", tools=True),
    "calls that are forbidden": Case(
        step=step('<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call>'),
        text='<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call>',
        tools=True,
        may_call=False,
    ),
    **{f"a broken call: {name}": Case(step=step(text), text=text, tools=True) for name, text in BROKEN.items()},
    "a thought and text": Case(step=step(f"<think>{THOUGHT}</think>So."), text="So.", thought=THOUGHT),
    "a thought and calls": Case(
        step=step(f"<think>{THOUGHT}</think>", *CALLS), thought=THOUGHT, calls=CALLS, end="calls", tools=True
    ),
    "two thoughts with text between": Case(step=step("<think>a</think>b<think>c</think>d"), text="bd", thought="ac"),
    "a thought that is cut": Case(step=step("<think>aaaa"), thought="aaa", end="length", max_tokens=10),
    "a stop string": Case(
        step=step("one STOP two"), text="one ", end="stop string", stop="STOP", not_for=("openai_responses",)
    ),
    "the longest that was asked for": Case(step=step("aaaa"), text="aaa", end="length", max_tokens=3),
}


def cases(dialect: str) -> list[str]:
    """Names of the answers that this dialect can ask for."""
    return [name for name, case in ANSWERS.items() if dialect not in case.not_for]


def sampler(name: str) -> ScriptedSampler:
    """Gives this answer, and then one word."""
    return ScriptedSampler(play([ANSWERS[name].step]))


def sampled(call: ModelCall) -> tuple[int, int, int]:
    """Prompt tokens, completion tokens, and those of reasoning: the bytes up to the last thought, each one token.

    Whatever became of the text, the record holds each sampled token, and may train.
    """
    assert len(call.completion_ids) == len(call.logprobs) == len(call.sampled_logprobs) == len(call.versions)
    assert ByteTokenizer().decode(call.completion_ids).removesuffix("<|im_end|>").startswith(call.text)
    assert (call.status, call.kind, call.untrainable_reason) == ("complete", "agent", None)
    head, mark, _ = call.text.rpartition("</think>")
    thoughts = 0
    if "<think>" in call.text:
        whole = (head if mark else call.text).encode()
        thoughts = len(whole)
        if head.count("</think>"):  # text between two thoughts counts as text, and so does what closed the first one
            thoughts -= len(b"</think>b")
    return len(call.prompt_ids), len(call.completion_ids), thoughts
