"""The servers that `gateway.py` measures, each in a process of its own that announces its address as `serve` does.

    python benchmarks/gateway_targets.py bare
    python benchmarks/gateway_targets.py practicum HOME

Both run the same uvicorn under the same settings and give the same answer; the bare one does nothing else: it is the
limit. How an answer comes follows from the request alone: without a `seed` whole and at once, with one it is a token
every `seed` milliseconds, `max_tokens` of them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from practicum.config import Config, ServerConfig
from practicum.gateway.server import run
from practicum.types.tokens import FinishReason, SampleRequest, TokenChunk

TEXT = b"The parcel left the warehouse this morning and will arrive on Friday."
_WHOLE: dict[str, Any] = {
    "id": "chatcmpl-call_01jz0000000000000000000000",
    "created": 1,
    "model": "practicum@0",
    "object": "chat.completion",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": TEXT.decode(), "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 60, "completion_tokens": len(TEXT) + 1, "total_tokens": 61 + len(TEXT)},
}
_JSON_HEADERS = [(b"content-type", b"application/json"), (b"x-request-id", b"req_01jz0000000000000000000000")]
_EVENTS_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """A constant chat completion for whatever is posted."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    raw = b""
    more = True
    while more:
        message = await receive()
        raw += message.get("body", b"")
        more = message.get("more_body", False)
    if b'"seed"' in raw:
        await _constant_stream(json.loads(raw), send)
        return
    body = json.dumps(_WHOLE, separators=(",", ":")).encode()
    headers = [*_JSON_HEADERS, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _constant_stream(asked: dict[str, Any], send: Any) -> None:
    base = {key: _WHOLE[key] for key in ("id", "created", "model")}
    event = {**base, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "a"}}]}
    await send({"type": "http.response.start", "status": 200, "headers": _EVENTS_HEADERS})
    for _ in range(asked["max_tokens"]):
        await asyncio.sleep(asked["seed"] / 1000)
        piece = b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


class ConstantSampler:
    """A Sampler that costs nothing: the text above at once, or one `a` at a time."""

    context_length = 1 << 20

    def __init__(self) -> None:
        from practicum.renderers import ByteTokenizer

        ids = (*TEXT, ByteTokenizer.END)
        known = (0.0,) * len(ids)
        self._whole = TokenChunk(ids=ids, logprobs=known, sampled_logprobs=known, version=0, finish_reason="stop")

    async def load(self, version: int, adapter_path: Path | None, digest: str) -> None:
        """Nothing is loaded."""

    async def sample(self, request: SampleRequest) -> AsyncIterator[TokenChunk]:
        """As the request says."""
        if request.params.seed is None:
            yield self._whole
            return
        for left in range(request.params.max_tokens - 1, -1, -1):
            await asyncio.sleep(request.params.seed / 1000)
            reason: FinishReason | None = None if left else "length"
            yield TokenChunk(ids=(97,), logprobs=(0.0,), sampled_logprobs=(0.0,), version=0, finish_reason=reason)

    async def logprobs(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int], *, version: int, temperature: float = 1.0
    ) -> list[float]:
        """Every token has probability 1."""
        return [0.0] * len(completion_ids)


def announce(port: int) -> None:
    print(f"Serving at http://127.0.0.1:{port}/v1", file=sys.stderr, flush=True)


def serve_practicum(home: Path) -> None:
    """As `practicum serve` wires it, with the constant sampler."""
    from practicum.cli import wiring
    from practicum.feedback import Ledger
    from practicum.feedback.routes import router
    from practicum.gateway import authenticate, create_app
    from practicum.renderers import ByteTokenizer, Renderer

    config = Config(home=home, server=ServerConfig(port=0))
    with wiring.opened(config) as (store, registry):
        routers = [router(Ledger(store, config.feedback.max_comment_chars), authenticate)]
        app = create_app(config, store, registry, ConstantSampler(), Renderer(ByteTokenizer()), routers=routers)
        run(app, config.server, started=announce)


if __name__ == "__main__":
    if sys.argv[1] == "bare":
        run(bare, ServerConfig(port=0), started=announce)
    else:
        serve_practicum(Path(sys.argv[2]))
