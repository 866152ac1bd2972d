"""`practicum serve`: the model endpoint, the feedback endpoint, and learning in the background if wanted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from practicum.cli.wiring import ConfigOption, HomeOption, SetOption


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
    sets: SetOption = None,
) -> None:
    """Serve the live policy at an OpenAI-compatible endpoint and record every call."""
    from practicum.cli import wiring

    chosen = wiring.overrides(sets, home, model__id=model, server__host=host, server__port=port)
    resolved = wiring.settings(config, chosen)
    with wiring.opened(resolved) as (store, registry):
        _first_key(store)
        from practicum.feedback import Ledger, router
        from practicum.gateway import Gateway
        from practicum.gateway.server import run

        background = _background(resolved, config, chosen) if learn else ()
        gateway = Gateway.assemble(
            config=resolved,
            store=store,
            registry=registry,
            sampler=wiring.sampler(resolved),
            renderer=wiring.renderer(resolved),
        )
        gateway.include(router(Ledger(store, resolved.feedback.max_comment_chars), gateway.authenticate))
        run(gateway.app, resolved.server, allow_remote=allow_remote, background=background)


def _first_key(store: object) -> None:
    """A store without keys gets one, printed once: there is no default secret."""
    from practicum.store import Store, create_key

    assert isinstance(store, Store)
    if not store.keys():
        plaintext = create_key(store, "owner", {"sample", "feedback", "admin"})
        print(f"Your key (shown once, for the agent and for feedback): {plaintext}", file=sys.stderr)


def _background(resolved: object, config: Path | None, chosen: dict[str, str]) -> tuple[object, ...]:
    raise NotImplementedError
