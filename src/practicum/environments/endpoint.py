"""Chat completions over HTTP, as the harness of in-house environments asks for them.

A fault of the endpoint's is tried again a little later, as SDKs do; what remains is an error that names it. It must not
know environments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    """One connection pool for all rollouts of an event loop."""

    def __init__(self) -> None:
        self._http: httpx.AsyncClient | None = None

    async def ask(self, endpoint: Endpoint, body: Mapping[str, Any]) -> Answered:
        """An answer. Raises Overflow; HarnessError where there is none."""
        said = ""
        for pause_s in (*_PAUSES_S, None):
            try:
                response = await self._client().post(
                    f"{endpoint.base_url}/v1/chat/completions",
                    json=body,
                    headers={"authorization": f"Bearer {endpoint.api_key}"},
                )
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

    async def aclose(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            self._http = httpx.AsyncClient(
                timeout=httpx.Timeout(None, connect=30.0),  # the rollout has limits of its own
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
                headers={"user-agent": f"practicum-environment/{__version__}"},
                trust_env=False,
            )
        return self._http


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
