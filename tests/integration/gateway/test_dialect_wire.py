"""Raw bytes against a whole server, in every dialect: streams under way, and bodies that no SDK would send.

What is pinned: W15 silence is bridged in a way that each provider's clients skip; W13 a disconnect ends the generation;
W20 ids stay here; W3 and W4 what an engine leaves out is refused for training; no body makes a 5xx.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from tests.integration.gateway.test_chat import Gated, eventually
from tests.unit.dialects.mutations import broken

from practicum.engines.scripted import ScriptedSampler, letters
from practicum.episodes.rows import training_rows
from practicum.gateway import Timing
from practicum.types.tokens import SampleRequest, TokenChunk

START = Any
PINGS = ('event: ping\ndata: {"type":"ping"}', ": waiting for the next token")
HI = [{"role": "user", "content": "Hi"}]
STREAMS = {
    "/v1/messages": {"model": "practicum", "max_tokens": 99, "messages": HI, "stream": True},
    "/v1/completions": {"model": "practicum", "max_tokens": 99, "prompt": "Hi", "stream": True},
    "/v1/responses": {"model": "practicum", "input": "Hi", "stream": True},
    "/v1beta/models/practicum:streamGenerateContent?alt=sse": {"contents": [{"parts": [{"text": "Hi"}]}]},
    "/v1beta/models/practicum:streamGenerateContent": {"contents": [{"parts": [{"text": "Hi"}]}]},
}


@pytest.mark.parametrize("path", STREAMS)
def test_w15_bytes_leave_as_tokens_are_sampled_and_silence_is_bridged(start: START, path: str) -> None:
    sampler = Gated()
    up = start(sampler, timing=Timing(ping_s=0.02))
    seen = ""
    with up.http() as http, http.stream("POST", path, json=STREAMS[path]) as reply:
        for piece in reply.iter_text():
            seen += piece
            if not sampler.gate.is_set() and seen.count('"a"') >= 5 and piece.strip() in ("", *PINGS):
                assert up.calls()[0].status == "open"
                sampler.gate.set()
    assert sampler.gate.is_set() and seen.count('"a"') >= 40 and up.calls()[0].status == "complete"


@pytest.mark.parametrize("path", STREAMS)
def test_w13_a_caller_who_disconnects_ends_the_generation(start: START, path: str) -> None:
    sampler = ScriptedSampler(letters(10_000), per_token_delay_s=0.005, context_length=20_000)
    up = start(sampler)
    body = json.loads(json.dumps(STREAMS[path]).replace("99", "9999"))
    with up.http() as http, http.stream("POST", path, json=body) as reply:
        next(reply.iter_raw())
    call = eventually(lambda: next((call for call in up.calls() if call.status != "open"), None))
    assert (call.status, call.kind) == ("aborted", "aborted")
    assert 0 < len(call.completion_ids) == len(call.logprobs) < 5000
    eventually(lambda: sampler.running == 0)
    assert training_rows(up.calls()).rows == ()


def lists_of_numbers(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from lists_of_numbers(item)


@pytest.mark.parametrize("path", STREAMS)
def test_w20_token_ids_leave_on_no_wire(up: Any, path: str) -> None:
    whole = path.split("?")[0].replace("streamGenerateContent", "generateContent")
    with up.http() as http:
        body = http.post(whole, json={name: value for name, value in STREAMS[path].items() if name != "stream"})
        stream = http.post(path, json=STREAMS[path]).text
    if "data: " in stream:
        lines = [line[6:] for line in stream.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
        stream = f"[{','.join(lines)}]"
    assert len(json.loads(stream)) > 3, "it was read"
    for told in (body.json(), json.loads(stream)):
        assert list(lists_of_numbers(told)) == []
        assert "token_ids" not in json.dumps(told) and "<|im_start|>" not in json.dumps(told)


class Poor(ScriptedSampler):
    """An engine that leaves out what a record needs: the ids, the logprobs, or one logprob."""

    def __init__(self, lacks: str) -> None:
        super().__init__(letters(5))
        self.lacks = lacks

    async def sample(self, request: SampleRequest) -> AsyncIterator[TokenChunk]:
        async for chunk in super().sample(request):
            if self.lacks == "ids":
                chunk = replace(chunk, ids=(), logprobs=(), sampled_logprobs=())
            elif self.lacks == "logprobs":
                chunk = replace(chunk, logprobs=(None,) * len(chunk.ids))
            elif chunk.finish_reason is not None:
                chunk = replace(chunk, logprobs=chunk.logprobs[1:])
            yield chunk


@pytest.mark.parametrize(
    ("lacks", "status", "says"),
    [("ids", 200, "no sampled token"), ("logprobs", 200, "no logprob"), ("the last logprob", 500, "internal error")],
)
@pytest.mark.parametrize("path", [path for path in STREAMS if "stream" not in path])
def test_w3_w4_what_an_engine_left_out_is_not_made_up(
    start: START, path: str, lacks: str, status: int, says: str
) -> None:
    up = start(Poor(lacks))
    with up.http() as http:
        reply = http.post(path, json={name: value for name, value in STREAMS[path].items() if name != "stream"})
    assert reply.status_code == status
    (call,) = up.calls()
    assert 0.0 not in call.logprobs or lacks == "the last logprob"
    assert len(call.completion_ids) == {"ids": 0, "logprobs": 6}.get(lacks, 5) == len(call.logprobs)
    made = training_rows([call])
    assert made.rows == () and says in made.refusals[call.call_id]


def ways(http: Any) -> Iterator[tuple[str, Callable[[bytes], Any]]]:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
                 "/v1/messages/count_tokens", "/v1beta/models/practicum:generateContent",
                 "/v1beta/models/practicum:streamGenerateContent",
                 "/v1beta/models/practicum:countTokens"):  # fmt: skip
        yield path, lambda raw, path=path: http.post(path, content=raw)


def test_bad_bytes_are_4xx_everywhere_and_in_the_providers_shape(up: Any) -> None:
    bad = [b"", b"{", b"[]", b'"x"', b"\xff", b'{"a": NaN}', b'{"a": 1e999}', b'{"a": 1, "a": 2}', b"[" * 50_000,
           b'{"contents": [{"parts": [{"text": 5}]}], "input": {}, "messages": 7, "model": "practicum"}',
           b'{"model": "practicum", "max_tokens": 1e30, "messages": "x", "input": 3, "contents": 3}']  # fmt: skip
    with up.http() as http:
        for path, post in ways(http):
            for raw in bad:
                reply = post(raw)
                assert 400 <= reply.status_code < 500, (path, raw[:40])
                assert isinstance(reply.json()["error"], dict)


WHERE = {
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "openai_completions": "/v1/completions",
    "anthropic_messages": "/v1/messages",
    "gemini": "/v1beta/models/practicum:generateContent",
}


@pytest.mark.parametrize("dialect", WHERE)
def test_broken_bodies_are_answered_or_refused_and_never_a_5xx(up: Any, dialect: str) -> None:
    with up.http() as http:
        for body in broken(dialect, 80):
            reply = http.post(WHERE[dialect], content=json.dumps(body).encode())
            assert reply.status_code < 500, body
            assert reply.status_code == 200 or isinstance(reply.json()["error"], dict)


def test_surrogates_nul_and_huge_numbers_are_no_5xx(up: Any) -> None:
    text = '"a\\ud800\\u0000b"'
    huge = "9" * 300
    bodies = {
        "/v1/responses": f'{{"model": "practicum", "input": {text}, "max_output_tokens": {huge}}}',
        "/v1/messages": f'{{"model": "practicum", "max_tokens": {huge}, "messages": [{{"role": "user", "content": {text}}}]}}',  # noqa: E501
        "/v1beta/models/practicum:generateContent": (
            f'{{"contents": [{{"parts": [{{"text": {text}}}]}}], "generationConfig": {{"maxOutputTokens": {huge}}}}}'
        ),
    }
    with up.http() as http:
        for path, body in bodies.items():
            assert http.post(path, content=body.encode()).status_code == 200, path
        for name in ("practicum%ED%A0%80", "%00", "a/b", "practicum:x"):
            with suppress(ValueError):
                assert http.post(f"/v1beta/models/{name}:generateContent", content=b"{}").status_code < 500


def test_w18_a_key_counts_for_what_gemini_says_in_the_url_too(up: Any) -> None:
    """The model and the method stand there, and two of them with one body are two requests."""
    asked = ("practicum:generateContent", "practicum@0:generateContent", "practicum:streamGenerateContent?alt=sse")
    body = {"contents": [{"parts": [{"text": "Hi"}]}]}
    with up.http() as http:

        def ask(end: str) -> str:
            reply = http.post(f"/v1beta/models/{end}", json=body, headers={"idempotency-key": "k"})
            assert reply.status_code == 200, reply.text
            return str(reply.headers["x-practicum-call-id"])

        first = [ask(end) for end in asked]
        assert len(set(first)) == 3 and [ask(end) for end in asked] == first
    assert len(up.calls()) == 3


def test_w18_a_key_counts_for_one_dialect(up: Any) -> None:
    body = {"model": "practicum", "messages": HI, "max_tokens": 8}
    with up.http() as http:
        replies = [
            http.post(f"/v1/{path}", json=body, headers={"idempotency-key": "k"})
            for path in ("chat/completions", "messages", "chat/completions")
        ]
    assert [reply.status_code for reply in replies] == [200, 409, 200] and len(up.calls()) == 1
