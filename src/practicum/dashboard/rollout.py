"""One rollout for people: what was said turn by turn, what it was worth and why, and which tokens train.

It is made of store records alone, so it shows a black-box harness's rollout as well as an in-house environment's. Of
each call only the messages are shown that the one before it did not have. Tool calls are shown as the harness sent them
back; the last answer, which nobody sent back, as it was sampled.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from practicum.dashboard.terminal import grid, written
from practicum.dashboard.wording import count, duration, number, one_line, plural, visible, when
from practicum.dialects.registry import recorded_request
from practicum.episodes.rows import training_rows
from practicum.errors import NotFound, PracticumError
from practicum.harnesses.results import result
from practicum.types import rollouts as records
from practicum.types.calls import ModelCall
from practicum.types.messages import Message
from practicum.types.rollouts import CAUSES, Rollout

_CUT_LINES, _CUT_CHARS = 12, 1200
_TONES = {"system": "dim", "user": "bold", "tool": "cyan", "assistant": "blue"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One message. `text` of a call of a tool is its name and its arguments."""

    role: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    """One model call: what was new in it, what was answered, and what of that trains.

    `versions` counts sampled tokens by policy version. `left_out` says why a call trains nothing; None where it does.
    """

    call_id: str
    kind: str
    agent: str | None
    new: tuple[Said, ...]
    answer: tuple[Said, ...]
    prompt_tokens: int
    sampled_tokens: int
    trained_tokens: int
    versions: Mapping[int, int]
    finish_reason: str | None
    seconds: float | None
    left_out: str | None
    fork: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """A rollout with its turns. `excluded` says why it takes no part in training; None where it does."""

    rollout: Rollout
    turns: tuple[TurnView, ...]
    rows: int
    excluded: str | None


def rollout_view(rollout: Rollout, calls: Sequence[ModelCall]) -> RolloutView:
    """The view of a rollout from the calls of its session, in order of arrival."""
    made = training_rows(calls)
    trained: Counter[str] = Counter()
    for episode in made.episodes:
        for span in episode.spans:
            trained[span.call_id] += sum(episode.mask[span.start : span.stop]) if span.trains else 0
    messages = {call.call_id: _messages(call) for call in calls}
    answers = _answers(calls, messages)
    return RolloutView(
        rollout=rollout,
        turns=tuple(
            TurnView(
                call_id=call.call_id,
                kind=call.kind,
                agent=call.agent_id,
                new=tuple(said for message in _new(call, messages) for said in _said(message)),
                answer=answers.get(call.call_id) or (Said(role="assistant", text=call.text),),
                prompt_tokens=len(call.prompt_ids),
                sampled_tokens=len(call.completion_ids),
                trained_tokens=trained[call.call_id],
                versions=dict(sorted(Counter(call.versions).items())),
                finish_reason=call.finish_reason,
                seconds=None if call.finished_at is None else call.finished_at - call.created_at,
                left_out=made.refusals.get(call.call_id),
                fork=call.fork_reason,
            )
            for call in calls
        ),
        rows=len(made.rows),
        excluded=result(rollout, calls).excluded,
    )


def session_of(rollout: Rollout, attempt: int | None) -> str:
    """The session of an attempt, of the last one where none is given. Raises NotFound."""
    sessions = {lost.number: lost.session_id for lost in rollout.attempts} | {rollout.attempt: rollout.session_id}
    wanted = rollout.attempt if attempt is None else attempt
    if wanted not in sessions:
        raise NotFound(
            f"The rollout has no attempt {wanted}.", hint=f"There are: {', '.join(map(str, sorted(sessions)))}."
        )
    return sessions[wanted]


def show_rollout(view: RolloutView, console: Console | None = None, *, whole: bool = False) -> None:
    """Print it to `console`, by default to standard output; long texts are cut unless `whole`."""
    written(_body(view, whole), console)


def show_group(group: records.Group, console: Console | None = None) -> None:
    """Print one line for each rollout of a group."""
    rows = [
        (
            one.rollout_id,
            one.cause or one.state,
            "–" if one.reward is None else number(one.reward),
            one_line(one.error or (one.outcomes[0].reason if one.outcomes else ""), 70),
        )
        for one in group.rollouts
    ]
    head = Text.assemble((f"{visible(group.task.task_id)}", "bold"), "  ", (group.group_id, "dim"))
    written(Group(head, grid(rows, ("rollout", "end", "reward", ""), frozenset({2}))), console)


def rollout_json(view: RolloutView) -> str:
    """All of it as ASCII JSON."""
    return json.dumps(asdict(view) | {"reward": view.rollout.reward}, indent=2)


def _messages(call: ModelCall) -> tuple[Message, ...]:
    """The conversation that was sent; empty where it cannot be read any more, or was a bare prompt."""
    try:
        return recorded_request(call.dialect, call.request).messages
    except PracticumError:
        return ()


def _new(call: ModelCall, messages: Mapping[str, tuple[Message, ...]]) -> Sequence[Message]:
    """What the call that this one goes on from neither had nor answered."""
    before = messages.get(call.parent_call_id or "")
    mine = messages[call.call_id]
    return mine if before is None or len(mine) <= len(before) else mine[len(before) + 1 :]


def _answers(calls: Sequence[ModelCall], messages: Mapping[str, tuple[Message, ...]]) -> dict[str, tuple[Said, ...]]:
    """Answers as a later request holds them."""
    found: dict[str, tuple[Said, ...]] = {}
    for call in calls:
        before = messages.get(call.parent_call_id or "")
        if before is None or len(messages[call.call_id]) <= len(before):
            continue
        sent_back = messages[call.call_id][len(before)]
        if sent_back.role == "assistant" and call.parent_call_id:
            found.setdefault(call.parent_call_id, _said(sent_back))
    return found


def _said(message: Message) -> tuple[Said, ...]:
    parts = [Said(role="reasoning", text=message.reasoning)] if message.reasoning else []
    if message.content or not (message.tool_calls or message.reasoning):
        parts.append(Said(role=message.role, text=message.content))
    parts += [Said(role="calls", text=f"{call.name} {call.arguments}") for call in message.tool_calls]
    return tuple(parts)


def _body(view: RolloutView, whole: bool) -> Group:
    rollout = view.rollout
    head = Text.assemble((visible(rollout.task_id), "bold"), f" #{rollout.index}  ", (rollout.rollout_id, "dim"))
    parts: list[RenderableType] = [head, grid([(Text(name, style="dim"), text) for name, text in _facts(view)]), Text()]
    for number_, turn in enumerate(view.turns, start=1):
        parts += [_turn_head(number_, turn), Padding(_exchange(turn, whole), (0, 0, 1, 2))]
    return Group(*parts)


def _facts(view: RolloutView) -> list[tuple[str, str]]:
    rollout = view.rollout
    end = f"{rollout.cause}: {CAUSES[rollout.cause].text}" if rollout.cause else f"{rollout.state}, no end yet"
    facts = [("end", end)]
    if rollout.error:
        facts.append(("", one_line(rollout.error, 400)))
    for place, outcome in enumerate(rollout.outcomes):
        reward = "none" if outcome.reward is None else number(outcome.reward)
        reason = f"  {one_line(outcome.reason, 300)}" if outcome.reason else ""
        name = "reward" if place == 0 else one_line(outcome.name, 24)
        facts.append((name, f"{reward}  by {one_line(outcome.by or outcome.name, 40)}{reason}"))
    for lost in rollout.attempts:
        facts.append((f"attempt {lost.number}", f"{lost.cause}: {one_line(lost.error or '', 300)}"))
    sampled = sum(turn.sampled_tokens for turn in view.turns)
    trained = sum(turn.trained_tokens for turn in view.turns)
    calls = plural(len(view.turns), "model call")
    facts.append(("tokens", f"{calls}, {count(sampled)} sampled, {count(trained)} in {plural(view.rows, 'row')}"))
    facts.append(("trains", "yes" if view.excluded is None else f"no: {one_line(view.excluded, 400)}"))
    stages = ", ".join(
        f"{one.stage} {duration(one.wall_s)}" for one in rollout.stages if one.attempt == rollout.attempt
    )
    facts.append(("begun", f"{when(rollout.created_at)}; {stages or 'no stage is over'}"))
    return facts


def _turn_head(place: int, turn: TurnView) -> Text:
    versions = ", ".join(f"{v}" if len(turn.versions) == 1 else f"{v} ({n})" for v, n in turn.versions.items())
    words = [
        f"{count(turn.prompt_tokens)} → {plural(turn.sampled_tokens, 'token')}",
        f"version {versions or '–'}",
        turn.finish_reason or "no end",
        duration(turn.seconds),
    ]
    if turn.kind != "agent" or turn.agent:
        words.insert(0, one_line(f"{turn.kind} {turn.agent or ''}", 60))
    head = Text.assemble((f"turn {place}", "bold"), "  ", ("; ".join(words), "dim"), "  ")
    if turn.left_out is not None:
        return head.append(f"✖ trains nothing: {one_line(turn.left_out, 200)}", style="yellow")
    if turn.trained_tokens != turn.sampled_tokens:
        return head.append(f"trains {count(turn.trained_tokens)}", style="yellow")
    return head.append("✔ trains", style="blue")


def _exchange(turn: TurnView, whole: bool) -> RenderableType:
    rows = [(Text(said.role, style=_TONES.get(said.role, "dim")), _text(said.text, whole)) for said in turn.new]
    rows += [(Text(f"▸ {said.role}", style=_TONES["assistant"]), _text(said.text, whole)) for said in turn.answer]
    return grid(rows)


def _text(text: str, whole: bool) -> str:
    shown = visible(text)
    if whole:
        return shown or "(empty)"
    lines = shown[:_CUT_CHARS].splitlines()
    cut = "\n".join(lines[:_CUT_LINES])
    left = len(shown) - len(cut)
    return (cut if not left else f"{cut}\n… {plural(left, 'character')} more; --full shows all") or "(empty)"
