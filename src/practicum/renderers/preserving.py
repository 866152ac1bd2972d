"""Whether a template is prefix-preserving: a few probe conversations, each rendered before and after one more turn.

Where a template is not, a conversation that is rendered anew at each call does not begin with what was served. The
gateway never renders a served answer again (`Renderer.tail`), so nothing breaks; the findings say what a fork costs,
and why another system that re-renders would split this model's episodes. It must not know families by name: what it
says comes from the rendered text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from practicum.errors import RequestError
from practicum.renderers.chat_template import CannotExtend, Renderer
from practicum.types.messages import Message, ToolCall, ToolSpec

Cause = Literal[
    "reasoning_stripped",
    "block_in_prompt",
    "definitions_moved",
    "history_rewritten",
    "tokens_merge",
    "arguments_rewritten",
    "reasoning_left_out",
    "turn_refused",
    "cannot_extend",
]
MEANING: dict[Cause, str] = {
    "reasoning_stripped": "strips the reasoning of earlier turns",
    "block_in_prompt": "puts text into the prompt for the next answer that the history does not have",
    "definitions_moved": "moves the tool definitions as the conversation grows",
    "history_rewritten": "renders earlier turns differently as the conversation grows",
    "tokens_merge": "lets the answer's beginning merge into one token with the prompt's end",
    "arguments_rewritten": "writes a call's arguments anew",
    "reasoning_left_out": "leaves an answer's reasoning out of the history",
    "turn_refused": "refuses the turn, so that it is rendered as plain text",
    "cannot_extend": "gives no tail behind a served answer, so that the episode forks",
}
_TOOL = ToolSpec(name="probe_spec", parameters={"type": "object", "properties": {"key": {"type": "string"}}})
_ARGUMENTS = '{ "key":"probe_value" }'
_THOUGHT = "probe_thought"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One way in which a template does not keep what was before. `turn` names the probe that shows it."""

    turn: str
    cause: Cause

    @property
    def meaning(self) -> str:
        """In words."""
        return f"{self.turn}: {MEANING[self.cause]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    turn: str
    before: tuple[Message, ...]
    answer: Message
    rest: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()


def prefix_findings(renderer: Renderer) -> tuple[Finding, ...]:
    """What keeps the template from being prefix-preserving; empty where it is."""
    found = [Finding(turn=probe.turn, cause=cause) for probe in _PROBES for cause in _causes(renderer, probe)]
    return tuple(found)


def _causes(renderer: Renderer, probe: _Probe) -> list[Cause]:
    causes: list[Cause] = []
    whole = [*probe.before, probe.answer, *probe.rest]
    try:
        prefix, longer = renderer.text(probe.before, probe.tools), renderer.text(whole, probe.tools)
    except RequestError:
        return ["turn_refused"]
    if not longer.startswith(prefix):
        causes.append(_why(prefix, longer, probe))
    elif not _starts(renderer.render(whole, probe.tools), renderer.render(probe.before, probe.tools)):
        causes.append("tokens_merge")
    if probe.answer.tool_calls and _ARGUMENTS not in longer:
        causes.append("arguments_rewritten")
    if probe.answer.reasoning and _THOUGHT not in longer:
        causes.append("reasoning_left_out")
    try:
        renderer.tail(probe.before, probe.rest, probe.tools, stop_id=None, answer=probe.answer)
    except CannotExtend:
        causes.append("cannot_extend")
    return causes


def _starts(whole: Sequence[int], prefix: Sequence[int]) -> bool:
    return list(whole[: len(prefix)]) == list(prefix)


def _why(prefix: str, longer: str, probe: _Probe) -> Cause:
    if prefix.count(_THOUGHT) > longer.count(_THOUGHT):
        return "reasoning_stripped"
    if probe.tools and prefix.find(_TOOL.name) != longer.find(_TOOL.name):
        return "definitions_moved"
    same = next((at for at, (one, other) in enumerate(zip(prefix, longer, strict=False)) if one != other), len(longer))
    last = probe.before[-1].content
    return "block_in_prompt" if same >= prefix.rfind(last) + len(last) else "history_rewritten"


def _user(number: int) -> Message:
    return Message(role="user", content=f"probe_question_{number}")


def _answer(number: int, reasoning: str = "") -> Message:
    return Message(role="assistant", content=f"the probe_answer_{number}", reasoning=reasoning)


def _call(number: int = 1, reasoning: str = "") -> Message:
    call = ToolCall(id=f"call_probe_{number}", name=_TOOL.name, arguments=_ARGUMENTS)
    return Message(role="assistant", tool_calls=(call,), reasoning=reasoning)


def _result(number: int = 1) -> Message:
    return Message(role="tool", content=f"probe_result_{number}", tool_call_id=f"call_probe_{number}")


_PROBES = (
    _Probe(turn="an answer", before=(_user(1),), answer=_answer(1), rest=(_user(2),)),
    _Probe(
        turn="an answer that begins with a line break",
        before=(_user(1),),
        answer=Message(role="assistant", content="\n\nprobe_answer_1"),
        rest=(_user(2),),
    ),
    _Probe(
        turn="an answer under a system message",
        before=(Message(role="system", content="probe_system"), _user(1)),
        answer=_answer(1),
        rest=(_user(2),),
    ),
    _Probe(turn="a second answer", before=(_user(1), _answer(1), _user(2)), answer=_answer(2), rest=(_user(3),)),
    _Probe(turn="a call", before=(_user(1),), answer=_call(), rest=(_result(),), tools=(_TOOL,)),
    _Probe(
        turn="a call behind a result",
        before=(_user(1), _call(), _result()),
        answer=_call(2),
        rest=(_result(2),),
        tools=(_TOOL,),
    ),
    _Probe(
        turn="a question behind a call",
        before=(_user(1), _call(), _result()),
        answer=_answer(1),
        rest=(_user(2),),
        tools=(_TOOL,),
    ),
    _Probe(turn="reasoning", before=(_user(1),), answer=_answer(1, _THOUGHT), rest=(_user(2),)),
    _Probe(
        turn="a question behind reasoning and a call",
        before=(_user(1), _call(1, _THOUGHT), _result()),
        answer=_answer(1),
        rest=(_user(2),),
        tools=(_TOOL,),
    ),
)
