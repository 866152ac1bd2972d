"""The rollout service inside `practicum serve`: made from the configuration, run beside the server."""

from __future__ import annotations

import asyncio
import importlib
import os
from functools import partial
from typing import Any, cast

from fastapi import APIRouter

from practicum.capture.stalls import Stalls
from practicum.config import Config
from practicum.environments.grader import EnvironmentGrader
from practicum.environments.harness import EnvironmentHarness
from practicum.environments.places import Allowed
from practicum.errors import ConfigError
from practicum.feedback.graders import GraderSettings, Judge, graders
from practicum.gateway.model_names import ModelNames
from practicum.harnesses.grading import GraderFactory
from practicum.harnesses.harness import Harness
from practicum.harnesses.registry import ADAPTERS
from practicum.harnesses.routes import Authenticate, router
from practicum.harnesses.runner import RolloutLimits
from practicum.harnesses.service import RolloutService
from practicum.policies import Registry
from practicum.sandboxes.choose import provider
from practicum.sandboxes.sandbox import Limits
from practicum.store import Store


def rollout_service(
    config: Config, store: Store, stalls: Stalls, gateway: str, *, environments: Allowed | None = None
) -> RolloutService:
    """The configured service, not entered yet. Raises ConfigError for what the configuration names wrongly.

    `environments` may be named by tasks; None is what lies in the configured folder.
    """
    chosen = config.rollouts
    if environments is None:
        folders = () if chosen.environments_folder is None else (chosen.environments_folder,)
        environments = Allowed(folders=folders)
    in_house = EnvironmentHarness(environments)
    shipped = {name: adapter() for name, adapter in ADAPTERS.items()} | {in_house.name: in_house}
    own = {name: _harness(path, f"rollouts.harnesses.{name}") for name, path in chosen.harnesses.items()}
    folder = chosen.graders_folder
    judge = None
    if chosen.judge_url:
        key = os.environ.get(chosen.judge_key_env, "")
        judge = Judge(base_url=chosen.judge_url, model=chosen.judge_model, api_key=key)
    return RolloutService(
        store,
        harnesses={**shipped, **own},
        sandboxes=provider(
            chosen.sandbox,
            hide=[path.absolute() for path in (config.home, folder, chosen.environments_folder) if path is not None],
        ),
        graders={
            **graders(GraderSettings(folder=folder, judge=judge)),
            in_house.name: partial(EnvironmentGrader, in_house),
            **{name: _grader(path, f"rollouts.graders.{name}") for name, path in chosen.graders.items()},
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
        check_model=partial(_check_model, config, Registry(store, config.policies_dir)),
        callback_hosts=chosen.callback_hosts,
    )


def _check_model(config: Config, registry: Registry, name: str) -> None:
    """Raises NotFound as the gateway does."""
    names = ModelNames(config.gateway.model_name, config.gateway.aliases)
    names.resolve(name, registry.list(), candidates=True)


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
    except Exception as error:  # the module is the team's own, and may raise anything
        said = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{key} = {path!r} cannot be imported: {said}.",
            hint="Put the module beside the configuration file, or install it where Practicum runs.",
            param=key,
        ) from error


def _harness(path: str, key: str) -> Harness:
    """The adapter that `module:attribute` names; a class is made without arguments. Raises ConfigError."""
    adapter = _named(path, key)
    if isinstance(adapter, type):
        try:
            adapter = adapter()
        except Exception as error:
            raise ConfigError(
                f"{key} = {path!r} cannot be made: {type(error).__name__}: {error}.",
                hint="Name a class that needs no arguments, or an adapter that is made already.",
                param=key,
            ) from error
    lacks = [name for name in ("submit", "status", "collect") if not callable(getattr(adapter, name, None))]
    if lacks:
        raise ConfigError(
            f"{key} = {path!r} is no harness: it has no {', '.join(f'`{name}`' for name in lacks)}.",
            hint="Name an adapter: a subclass of practicum.harnesses.process.ProcessHarness, or see docs/harnesses.md.",
            param=key,
        )
    return cast(Harness, adapter)


def _grader(path: str, key: str) -> GraderFactory:
    """What makes a grader of options. Raises ConfigError."""
    made = _named(path, key)
    if not callable(made):
        raise ConfigError(
            f"{key} = {path!r} is no grader: it cannot be called.",
            hint="Name a function from a task's options to a grader, or a grader's class.",
            param=key,
        )
    return cast(GraderFactory, made)
