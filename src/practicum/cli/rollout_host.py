"""The rollout service inside `practicum serve`: made from the configuration, run beside the server."""

from __future__ import annotations

import asyncio
import importlib
import os
from typing import Any

from fastapi import APIRouter

from practicum.capture.stalls import Stalls
from practicum.config import Config
from practicum.errors import ConfigError
from practicum.feedback.graders import GraderSettings, Judge, graders
from practicum.harnesses.registry import ADAPTERS
from practicum.harnesses.routes import Authenticate, router
from practicum.harnesses.runner import RolloutLimits
from practicum.harnesses.service import RolloutService
from practicum.sandboxes.choose import provider
from practicum.sandboxes.sandbox import Limits
from practicum.store import Store


def rollout_service(config: Config, store: Store, stalls: Stalls, gateway: str) -> RolloutService:
    """The configured service, not entered yet. Raises ConfigError for what the configuration names wrongly."""
    chosen = config.rollouts
    shipped = {name: adapter() for name, adapter in ADAPTERS.items()}
    own = {name: _made(_named(path, f"rollouts.harnesses.{name}")) for name, path in chosen.harnesses.items()}
    folder = chosen.graders_folder
    judge = None
    if chosen.judge_url:
        key = os.environ.get(chosen.judge_key_env, "")
        judge = Judge(base_url=chosen.judge_url, model=chosen.judge_model, api_key=key)
    return RolloutService(
        store,
        harnesses={**shipped, **own},
        sandboxes=provider(
            chosen.sandbox, hide=[path.absolute() for path in (config.home, folder) if path is not None]
        ),
        graders={
            **graders(GraderSettings(folder=folder, judge=judge)),
            **{name: _named(path, f"rollouts.graders.{name}") for name, path in chosen.graders.items()},
        },
        gateway=chosen.gateway_url or gateway,
        model=config.gateway.model_name,
        limits=RolloutLimits(
            prepare=chosen.prepare,
            ready=chosen.ready,
            run=chosen.run,
            grade=chosen.grade,
            open=chosen.open,
            attempts=chosen.attempts,
        ),
        sandbox_limits=Limits(
            cpu_s=chosen.cpu_s,
            memory_bytes=chosen.memory_bytes,
            file_bytes=chosen.file_bytes,
            processes=chosen.processes,
        ),
        stalls=stalls,
        callback_hosts=chosen.callback_hosts,
    )


class RolloutHost:
    """A service that begins once the server listens. Raises Conflict where another one runs this store's rollouts."""

    def __init__(self, config: Config, store: Store) -> None:
        self.stalls = Stalls()
        self._config = config
        self._listening = asyncio.Event()
        self._service = rollout_service(config, store, self.stalls, "")
        self._service.claim()

    def router(self, authenticate: Authenticate) -> APIRouter:
        """The service's routes."""
        return router(self._service, authenticate)

    def listening(self, port: int) -> None:
        """The server has its port: rollouts can reach it."""
        host = self._config.server.host
        reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        address = f"[{reached}]" if ":" in reached else reached
        self._service.gateway = self._config.rollouts.gateway_url or f"http://{address}:{port}"
        self._listening.set()

    async def run(self) -> None:
        """Run rollouts until cancelled."""
        await self._listening.wait()
        async with self._service:
            await asyncio.Event().wait()


def _named(path: str, key: str) -> Any:
    """What `module:attribute` names."""
    module, colon, attribute = path.partition(":")
    try:
        if not colon:
            raise ImportError("it is not of the form module:attribute")
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{key} = {path!r} cannot be imported: {error}.",
            hint="Install the module where Practicum runs, or name its folder in PYTHONPATH.",
            param=key,
        ) from error


def _made(adapter: Any) -> Any:
    return adapter() if isinstance(adapter, type) else adapter
