"""`practicum keys | feedback | config | model`: who may come in, what they said, what is set, how the model talks."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from practicum.cli.wiring import ConfigOption, HomeOption, JsonOption, SetOption

keys = typer.Typer(help="API keys.", no_args_is_help=True)
feedback = typer.Typer(help="Feedback that came in.", no_args_is_help=True)
config = typer.Typer(help="The resolved configuration.", no_args_is_help=True)


@keys.command("create")
def create(
    principal: Annotated[str, typer.Argument(help="Whose key it is: a person or an application.")],
    scope: Annotated[list[str] | None, typer.Option(help="sample, feedback, rollout, admin; repeatable.")] = None,
    config: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Make a key; it is printed once and not kept."""
    from practicum.cli import wiring
    from practicum.store import create_key
    from practicum.types.principals import Scope

    wanted: list[Scope] = scope or ["sample", "feedback"]  # type: ignore[assignment]
    with wiring.opened(wiring.settings(config, wiring.overrides(None, home))) as (store, _):
        print(create_key(store, principal, wanted))


@keys.command("list")
def list_all(config: ConfigOption = None, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Every key by id, never the key itself."""
    from practicum.cli import wiring

    with wiring.opened(wiring.settings(config, wiring.overrides(None, home))) as (store, _):
        records = store.keys()
    if as_json:
        print(json.dumps([asdict(record) | {"scopes": sorted(record.scopes)} for record in records]))
        return
    for record in records:
        state = "revoked" if record.revoked_at else "active"
        print(f"{record.key_id}  {state:<8} {record.principal:<20} {','.join(sorted(record.scopes))}")


@keys.command("revoke")
def revoke(key_id: str, config: ConfigOption = None, home: HomeOption = None) -> None:
    """Make a key useless from now on."""
    from practicum.cli import wiring
    from practicum.store import revoke as revoke_key

    with wiring.opened(wiring.settings(config, wiring.overrides(None, home))) as (store, _):
        revoke_key(store, key_id)
    print(f"{key_id} is revoked.")


@feedback.command("list")
def list_feedback(
    target: Annotated[str | None, typer.Option(help="Only on this call or session.")] = None,
    source: Annotated[str | None, typer.Option(help="Only from this source.")] = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """What people said, newest last."""
    from practicum.cli import wiring

    with wiring.opened(wiring.settings(config, wiring.overrides(None, home))) as (store, _):
        items = store.feedback(target_id=target, source=source, include_retracted=True)
    if as_json:
        print(json.dumps([asdict(item) for item in items]))
        return
    for item in items:
        when = datetime.fromtimestamp(item.updated_at, UTC).strftime("%Y-%m-%d %H:%M")
        state = " (retracted)" if item.retracted else ""
        print(f"{when}  {item.source:<24} {item.form:<10} {item.target_id}  {json.dumps(item.value)[:80]}{state}")


@config.command("show")
def show(
    config: ConfigOption = None,
    home: HomeOption = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    as_json: JsonOption = False,
    sets: SetOption = None,
) -> None:
    """Every key with its value."""
    from practicum.cli import wiring
    from practicum.config import flatten, load_config, origins

    chosen = wiring.overrides(sets, home)
    values = flatten(load_config(config, chosen))
    places = origins(config, chosen) if origin else {}
    if as_json:
        print(json.dumps({key: {"value": str(value), "origin": places.get(key)} for key, value in values.items()}))
        return
    for key, value in values.items():
        print(f"{key} = {value}" + (f"    ({places[key]})" if origin else ""))


def model(
    config: ConfigOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
    sets: SetOption = None,
) -> None:
    """How the model's template is read: its family, its calls and reasoning, and what keeps no prefix."""
    from practicum.cli import wiring
    from practicum.renderers import prefix_findings

    renderer = wiring.renderer(wiring.settings(config, wiring.overrides(sets, home)))
    through = {True: "template", False: "text"}
    facts: dict[str, str | list[str]] = {
        "family": renderer.family.name,
        "calls": renderer.markup.kind,
        "reasoning": renderer.reasoning,
        "tool definitions": through[renderer.native_tools],
        "calls and results": through[renderer.native_calls],
        "ends": [renderer.tokenizer.decode([token]) for token in renderer.stop_ids],
        "findings": [finding.meaning for finding in prefix_findings(renderer)],
    }
    if as_json:
        print(json.dumps(facts, ensure_ascii=False))
        return
    for name, fact in facts.items():
        lines = fact if isinstance(fact, list) else [fact]
        print(f"{name:<18} " + ("\n" + " " * 19).join(lines or ["none"]))
