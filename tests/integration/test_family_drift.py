"""Drift: random conversations with tools through the gateway's own preparation, for every family.

Pins, for 50 conversations a family (E1, E3, invariant 2): the ids of the merged episode are what was served, one call's
prompt and completion after the other, with nothing rendered again; a conversation is one episode; what the harness adds
between two calls is in the tail. Answers hold reasoning, parallel calls and unicode, are often not tokenised as the
tokenizer would, end by length or by any stop token of the family; the harness writes arguments anew, leaves content
out, empty or null, and returns reasoning always or never.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.renderers.family_fixtures import ALL_FAMILIES, renderer_for
from tests.unit.renderers.family_talk import TOOLS, calls, encoded, words, written_answer
from tests.unit.renderers.test_families import said

from practicum.dialects import openai_chat
from practicum.episodes.matching import extended_hash
from practicum.episodes.rows import training_rows
from practicum.gateway.answer import AnswerText
from practicum.gateway.model_names import ModelNames
from practicum.gateway.prepare import Incoming, Prepared, Preparer
from practicum.renderers import IncrementalDecoder, Renderer
from practicum.types.calls import Asked, ModelCall
from practicum.types.messages import Message
from practicum.types.policies import PolicyVersion
from practicum.types.principals import Principal

CONVERSATIONS = 50
WHO = Principal(key_id="k", name="harness", scopes=frozenset({"sample"}))
WIRE_TOOLS = [
    {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
    for t in TOOLS
]


class Served:
    """The calls of one conversation, as the gateway looks them up."""

    def __init__(self) -> None:
        self.calls: list[ModelCall] = []

    def find_by_history(self, principal: str, history_hash: str, session_id: str) -> list[ModelCall]:
        return [c for c in reversed(self.calls) if c.principal == principal and c.history_hash == history_hash]

    def last_asked(self, principal: str, prompt_hash: str, session_id: str | None) -> Asked | None:
        found = (c for c in reversed(self.calls) if c.principal == principal and c.prompt_hash == prompt_hash)
        call = next((c for c in found if session_id in (None, c.session_id)), None)
        return call and Asked(session_id=call.session_id, agent_id=call.agent_id, status=call.status)

    def last_turn(self, session_id: str, agent_id: str | None) -> ModelCall | None:
        own = (call for call in reversed(self.calls) if call.session_id == session_id and call.agent_id == agent_id)
        return next((call for call in own if call.kind != "auxiliary"), None)

    def last_call(self, session_id: str) -> ModelCall | None:
        return next((call for call in reversed(self.calls) if call.session_id == session_id), None)


class OnlyLive:
    """A registry in which nothing was released by name."""

    def live(self) -> PolicyVersion:
        raise AssertionError("preparing asks for no version")

    def get(self, version: int) -> PolicyVersion:
        raise AssertionError("preparing asks for no version")

    def list(self) -> list[PolicyVersion]:
        return []


class Harness:
    """Talks to the gateway's preparation and answer for one conversation, and samples what the family would."""

    def __init__(self, renderer: Renderer, seed: int) -> None:
        self.rng = random.Random(seed)
        self.renderer = renderer
        self.store = Served()
        self.names = ModelNames("practicum", [])
        self.preparer = Preparer(
            self.store, OnlyLive(), renderer, self.names, context_length=10**6, default_max_tokens=256
        )
        self.returns_reasoning = self.rng.random() < 0.5
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": words(self.rng)}]
        if self.rng.random() < 0.5:
            self.messages.insert(0, {"role": "system", "content": words(self.rng)})

    def prepare(self) -> Prepared:
        tools = list(WIRE_TOOLS)
        self.rng.shuffle(tools)
        body = {"model": "practicum", "messages": self.messages, "tools": tools, "temperature": 1.0}
        raw = json.dumps(body).encode()
        return self.preparer.prepare(
            Incoming(dialect=openai_chat, raw=raw, path={}, headers={}, url_session="s", principal=WHO)
        )

    def written(self, prepared: Prepared) -> list[int]:
        """Ids of an answer, cut by length or ended by one of the family's stop tokens."""
        rng = self.rng
        wanted = calls(rng, self.renderer) if rng.random() < 0.6 else []
        content = words(rng) if not wanted or rng.random() < 0.4 else ""
        prompt = self.renderer.tokenizer.decode(prepared.prompt_ids)
        text = written_answer(rng, self.renderer, prompt, words(rng), content, wanted)
        ids = encoded(rng, self.renderer.tokenizer, text)
        if rng.random() < 0.25:
            return ids[: rng.randint(1, len(ids))]
        return [*ids, rng.choice(self.renderer.stop_ids)]

    def answer(self, prepared: Prepared, ids: Sequence[int], logprobs: Sequence[float]) -> Message:
        """Decode, parse and record as the gateway does."""
        call_id = f"call_{len(self.store.calls):08d}"
        stops = self.renderer.stop_ids
        answer = AnswerText(prepared.request, call_id, self.renderer, prepared.prompt_ids)
        decoder = IncrementalDecoder(self.renderer.tokenizer)
        for token in ids:
            answer.feed(decoder.feed([token] if token not in stops else []))
        answer.feed(decoder.finish())
        answer.finish()
        parent = prepared.link.parent
        self.store.calls.append(
            ModelCall(
                call_id=call_id,
                session_id=prepared.session.session_id,
                principal=WHO.name,
                kind=prepared.kind,
                status="complete",
                created_at=float(len(self.store.calls)),
                policy_version=1,
                model="practicum@1",
                request=prepared.request.body,
                text=answer.text,
                finish_reason=answer.finish_reason("stop" if ids[-1] in stops else "length"),
                prompt_ids=prepared.prompt_ids,
                completion_ids=tuple(ids),
                logprobs=tuple(logprobs),
                versions=(1,) * len(ids),
                parent_call_id=parent.call.call_id if parent else None,
                episode_id=prepared.episode_id,
                fork_reason=prepared.link.fork_reason,
                prompt_hash=prepared.link.prompt_hash,
                agent_id=prepared.session.agent_id,
                history_hash=extended_hash(prepared.link.prompt_hash, answer.message),
            )
        )
        return answer.message

    def replay(self, message: Message) -> list[str]:
        """Append the answer as harnesses write it back, and what comes next; returns the new texts."""
        rng = self.rng
        wire: dict[str, Any] = {"role": "assistant", "content": message.content}
        if message.tool_calls:
            if not message.content:
                wire = rng.choice([{**wire, "content": None}, wire, {"role": "assistant"}])
            wire["tool_calls"] = [
                {
                    "id": c.id,
                    "type": "function",
                    "function": {"name": c.name, "arguments": self._rewritten(c.arguments)},
                }
                for c in message.tool_calls
            ]
        if message.reasoning and self.returns_reasoning:
            wire["reasoning_content"] = message.reasoning
        added = [{"role": "tool", "tool_call_id": c.id, "content": words(rng)} for c in message.tool_calls]
        if not added or rng.random() < 0.2:
            added.append({"role": "user", "content": words(rng)})
        self.messages += [wire, *added]
        return [str(one["content"]) for one in added]

    def _rewritten(self, arguments: str) -> str:
        separators = self.rng.choice([(",", ":"), (", ", ": "), (" , ", " : ")])
        written: str = json.dumps(
            json.loads(arguments), separators=separators, sort_keys=self.rng.random() < 0.5, ensure_ascii=False
        )
        return written


@pytest.mark.parametrize("name", ALL_FAMILIES)
def test_the_merged_episode_is_what_was_served(name: str) -> None:
    renderer = renderer_for(name)
    seen = {"calls": 0, "reasoning": 0, "length": 0, "spliced": 0}
    for seed in range(CONVERSATIONS):
        harness = Harness(renderer, seed)
        served: tuple[int, ...] = ()
        added: list[str] = []
        for turn in range(harness.rng.randint(2, 5)):
            prepared = harness.prepare()
            assert prepared.prompt_ids[: len(served)] == served, (seed, turn)
            assert prepared.link.fork_reason == (None if turn else "new_conversation")
            tail = renderer.tokenizer.decode(prepared.prompt_ids[len(served) :])
            assert all(said(tail, text) for text in added), (seed, turn, added, tail)
            ids = harness.written(prepared)
            message = harness.answer(prepared, ids, [-0.5] * len(ids))
            added = harness.replay(message)
            served = (*prepared.prompt_ids, *ids)
            seen["calls"] += len(message.tool_calls)
            seen["reasoning"] += bool(message.reasoning)
            seen["length"] += ids[-1] not in renderer.stop_ids
            seen["spliced"] += bool(turn)
        rows = training_rows(harness.store.calls)
        assert len(rows.episodes) == len(rows.rows) == 1 and not rows.refusals
        assert rows.episodes[0].ids == served
        trained = [token for token, own in zip(rows.episodes[0].ids, rows.episodes[0].mask, strict=True) if own]
        assert trained == [token for call in harness.store.calls for token in call.completion_ids]
    assert min(seen["calls"], seen["length"], seen["spliced"]) > CONVERSATIONS / 4
    assert bool(seen["reasoning"]) == (renderer.reasoning != "none")
