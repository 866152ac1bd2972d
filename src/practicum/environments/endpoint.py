"""Chat completions over HTTP, as the harness of in-house environments asks for them.

A fault of the endpoint's is tried again a little later, as SDKs do; what remains is an error that names it. It must not
know environments.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import httpx

from practicum import __version__
from practicum.errors import HarnessError
from practicum.harnesses.harness import Endpoint

_PAUSES_S = (0.2, 1.0)
_TRY_AGAIN = frozenset({408, 409, 429})
_KEPT = ("role", "content", "tool_calls", "reasoning_content", "reasoning")
_SAID_CHARS = 300


class Overflow(HarnessError):
    """The conversation does not fit the model's context any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """`message` as it must be sent back. `truncated`: its completion hit the token limit."""

    message: dict[str, Any]
    truncated: bool


class ChatEndpoint:
    """The model's address for one episode, with a connection of its own: a pool that many share looks at all of its
    connections at each request. Use it as a context."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._url = f"{endpoint.base_url}/v1/chat/completions"
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=30.0),  # the rollout has limits of its own
            headers={
                "user-agent": f"practicum-environment/{__version__}",
                "authorization": f"Bearer {endpoint.api_key}",
            },
            verify=_tls() if self._url.startswith("https:") else False,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self._http.aclose()

    async def ask(self, body: Mapping[str, Any]) -> Answered:
        """An answer. Raises Overflow; HarnessError where there is none."""
        said = ""
        for pause_s in (*_PAUSES_S, None):
            try:
                response = await self._http.post(self._url, json=body)
            except httpx.TransportError as error:
                said = f"{type(error).__name__}: {error}".rstrip(": ")
            else:
                if response.status_code == 200:
                    return _answered(response)
                said = _refused(response)
                if response.status_code < 500 and response.status_code not in _TRY_AGAIN:
                    break
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        raise HarnessError(f"The model endpoint gave no answer: {said}")


@cache
def _tls() -> ssl.SSLContext:
    """Made once: reading the certificates takes longer than a request."""
    return httpx.create_ssl_context()


def _answered(response: httpx.Response) -> Answered:
    try:
        choice = response.json()["choices"][0]
        message = {name: choice["message"][name] for name in _KEPT if choice["message"].get(name) is not None}
        return Answered(message=message, truncated=choice["finish_reason"] == "length")
    except (ValueError, LookupError, TypeError) as error:
        raise HarnessError(f"The model endpoint answered what is no chat completion: {error!r}.") from error


def _refused(response: httpx.Response) -> str:
    """What an error says. Raises Overflow."""
    try:
        error = response.json()["error"]
        text, code = str(error["message"]), error.get("code")
    except (ValueError, LookupError, TypeError, AttributeError):
        text, code = response.text, None
    if code == "context_length_exceeded":
        raise Overflow(text)
    return f"status {response.status_code}: {text[:_SAID_CHARS]}"
