"""An ASGI application's start and end without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def lifespan(app: Callable[..., Any]) -> AsyncIterator[None]:
    inbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    outbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    running = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}}, inbox.get, outbox.put))
    for phase in ("startup", "shutdown"):
        inbox.put_nowait({"type": f"lifespan.{phase}"})
        assert (await outbox.get())["type"] == f"lifespan.{phase}.complete"
        if phase == "startup":
            yield
    await running
