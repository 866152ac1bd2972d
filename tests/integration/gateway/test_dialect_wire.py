"""Raw bytes against a whole server, in every dialect: streams under way, and bodies that no SDK would send.

What is pinned: W15 silence is bridged in a way that each provider's clients skip; no body makes a 5xx.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.integration.gateway.test_chat import Gated
from tests.unit.dialects.mutations import broken

from practicum.gateway import Timing

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
