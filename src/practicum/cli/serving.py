"""`practicum serve`: the model endpoint, the feedback endpoint, and learning in the background if wanted."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from practicum.cli.wiring import ConfigOption, HomeOption, SetOption

if TYPE_CHECKING:
    from practicum.cli.rollout_host import RolloutHost
    from practicum.config import Config
    from practicum.store import Store


def serve(
    config: ConfigOption = None,
    home: HomeOption = None,
    model: Annotated[
        str | None, typer.Option(help="Model: a name, a folder, a hub id, `scripted`, or `scripted:FILE`.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.")] = None,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Permit an address other machines can reach.")
    ] = False,
    learn: Annotated[bool, typer.Option("--learn", help="Learn in the background as feedback comes in.")] = False,
    rollouts: Annotated[bool, typer.Option("--rollouts", help="Run rollouts that are submitted here.")] = False,
    sets: SetOption = None,
) -> None:
    """Serve the live policy at an OpenAI-compatible endpoint and record every call."""
    from practicum.cli import wiring
    from practicum.cli.rollout_host import RolloutHost
    from practicum.feedback import Ledger
    from practicum.feedback.routes import router
    from practicum.gateway import authenticate, create_app
    from practicum.gateway.server import bind, check_host, run

    chosen = wiring.overrides(
        sets, home, model__id=model, server__host=host, server__port=port, rollouts__enabled=rollouts or None
    )
    if learn and "model.threads" not in chosen:
        chosen["model.threads"] = "1"  # the other core is the learner's
    resolved = wiring.settings(config, chosen)
    check_host(resolved.server.host, allow_remote=allow_remote)
    with wiring.opened(resolved) as (store, registry):
        host_of = RolloutHost(resolved, store) if resolved.rollouts.enabled else None
        sockets = bind(resolved.server)
        app = create_app(
            resolved,
            store,
            registry,
            wiring.sampler(resolved),
            wiring.renderer(resolved),
            routers=[
                router(Ledger(store, resolved.feedback.max_comment_chars), authenticate),
                *([host_of.router(authenticate)] if host_of else []),
            ],
            stalls=host_of.stalls if host_of else None,
        )
        watch: list[Callable[[], Awaitable[None]]] = [host_of.run] if host_of else []
        if learn:
            from practicum.live.background import Watcher

            watch.append(Watcher(store, _same(config, chosen), every=resolved.learn.every_feedback).run)
        run(
            app,
            resolved.server,
            allow_remote=allow_remote,
            background=watch,
            started=partial(_started, resolved, store, host_of),
            sockets=sockets,
        )


def _started(config: Config, store: Store, host_of: RolloutHost | None, port: int) -> None:
    _first_key(store)  # not before: a server that does not come up must not use the one time that it is shown
    if host_of is not None:
        host_of.listening(port)
    _announce(config.server.host, port, config.model.id)


def _first_key(store: Store) -> None:
    """A store without keys gets one, printed once: there is no default secret."""
    from practicum.store import create_key

    if not store.keys():
        plaintext = create_key(store, "owner", {"sample", "feedback", "admin"})
        print(f"Your key (shown once; it may do everything): {plaintext}", file=sys.stderr)
        print("A key for an agent alone: practicum keys create NAME --scope sample", file=sys.stderr)


def _announce(host: str, port: int, model: str) -> None:
    address = f"[{host}]" if ":" in host else host
    print(f"Serving {model} at http://{address}:{port}/v1", file=sys.stderr, flush=True)


def _same(config: Path | None, chosen: dict[str, str]) -> list[str]:
    """Arguments that give a learner in another process the server's configuration."""
    arguments = ["--config", str(config)] if config is not None else []
    for key, value in chosen.items():
        if not key.startswith(("server.", "model.threads")):
            arguments += ["--set", f"{key}={value}"]
    return arguments
