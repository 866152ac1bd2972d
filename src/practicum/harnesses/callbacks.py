"""Tells a caller that its group has ended: one signed POST, with bounded retries, beside the pools.

The headers are those of the Standard Webhooks convention (`webhook-id`, `webhook-timestamp`, `webhook-signature`), so
any of its libraries verifies them. A callback goes to this machine, or to a host that the configuration names; it
follows no redirect. Polling works whatever becomes of it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from practicum.errors import RequestError

_SECRET_PREFIX = "whsec_"
_log = logging.getLogger("practicum.harnesses.callbacks")


def callback_secret(store_secret: bytes) -> str:
    """The service's own secret, for those who verify; made from the store's, so that a restart keeps it."""
    derived = hmac.new(store_secret, b"practicum rollout callbacks", hashlib.sha256).digest()
    return _SECRET_PREFIX + base64.b64encode(derived).decode()


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """`v1,` and the base64 HMAC-SHA256 of `id.timestamp.body`."""
    key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def check_callback_url(url: str, allowed_hosts: Collection[str]) -> None:
    """Raises RequestError for an address that callbacks may not go to."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host:
        raise RequestError("`callback_url` is no http address.", param="callback_url")
    if host not in allowed_hosts and not _is_loopback(host):
        raise RequestError(
            f"`callback_url` names the host {host!r}, which is not allowed.",
            hint="Use this machine, or add the host to `rollouts.callback_hosts`.",
            param="callback_url",
        )


class Callbacks:
    """Delivers messages.

    Args:
        secret: signs them.
        attempts: most tries for one message.
        pause_s: before the second try; doubled with each.
        sleep: waits.
        transport: an httpx transport; tests give their own.
        clock: UTC seconds.
    """

    def __init__(
        self,
        secret: str,
        *,
        sleep: Callable[[float], Awaitable[None]],
        attempts: int = 5,
        pause_s: float = 1.0,
        timeout_s: float = 10.0,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.secret = secret
        self._attempts = attempts
        self._pause_s = pause_s
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._transport = transport
        self._clock = clock

    async def deliver(self, url: str, message_id: str, document: Mapping[str, Any]) -> str:
        """`delivered`, or `failed: REASON`. Every try carries the same id, so that a receiver can tell repeats."""
        body = json.dumps(document).encode()
        reason = ""
        async with httpx.AsyncClient(timeout=self._timeout_s, transport=self._transport, trust_env=False) as http:
            for attempt in range(self._attempts):
                if attempt:
                    await self._sleep(self._pause_s * 2 ** (attempt - 1))
                timestamp = int(self._clock())
                headers = {
                    "content-type": "application/json",
                    "webhook-id": message_id,
                    "webhook-timestamp": str(timestamp),
                    "webhook-signature": signature(self.secret, message_id, timestamp, body),
                }
                try:
                    answer = await http.post(url, content=body, headers=headers)
                except (httpx.HTTPError, httpx.InvalidURL) as error:
                    reason = f"{type(error).__name__}: {error}"
                else:
                    if answer.is_success:
                        return "delivered"
                    reason = f"it answered {answer.status_code}"
        _log.warning("callback %s to %s was not delivered: %s", message_id, url, reason)
        return f"failed: {reason}, {self._attempts} times"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
