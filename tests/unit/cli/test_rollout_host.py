"""What the configuration names of a team's own: harnesses, graders, models; checked before anything is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from practicum.capture.stalls import Stalls
from practicum.cli.rollout_host import rollout_service
from practicum.config import Config, RolloutsConfig
from practicum.errors import ConfigError, RequestError
from practicum.harnesses.service import RolloutService
from practicum.store import Store, open_store
from practicum.types.rollouts import Task

MODULE = """
from practicum.harnesses.own_code import Command


class Mine(Command):
    name = "mine"


class Needy(Command):
    def __init__(self, address):
        super().__init__()


made = Mine()
number = 7
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    (tmp_path / "our_parts.py").write_text(MODULE)
    (tmp_path / "our_broken_part.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with open_store(tmp_path / "practicum.db") as opened:
        yield opened


def service(store: Store, **rollouts: object) -> RolloutService:
    chosen = RolloutsConfig.model_validate({"sandbox": "local", **rollouts})
    return rollout_service(Config(home=store.path.parent, rollouts=chosen), store, Stalls(), "http://127.0.0.1:1")


@pytest.mark.parametrize("path", ["our_parts:Mine", "our_parts:made"])
def test_a_class_and_an_adapter_are_harnesses(store: Store, path: str) -> None:
    made = service(store, harnesses={"mine": path})
    made.check(Task(task_id="t", instructions=("Go.",), harness="mine", options={"command": ["sh"]}))


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("json:loads", "is no harness: it has no `submit`, `status`, `collect`"),
        ("our_parts:number", "is no harness"),
        ("our_parts:Needy", "cannot be made: TypeError"),
        ("our_parts:Missing", "cannot be imported: module 'our_parts' has no attribute 'Missing'"),
        ("our_parts", "not of the form module:attribute"),
        ("no_such_module:X", "cannot be imported: No module named"),
        ("our_broken_part:X", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_what_is_no_harness_is_refused_by_name(store: Store, path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        service(store, harnesses={"x": path})
    assert caught.value.param == "rollouts.harnesses.x" and caught.value.hint


def test_what_is_no_grader_is_refused_by_name(store: Store) -> None:
    with pytest.raises(ConfigError, match="is no grader: it cannot be called") as caught:
        service(store, graders={"x": "our_parts:number"})
    assert caught.value.param == "rollouts.graders.x"


def test_a_task_may_name_the_models_that_the_gateway_has(store: Store) -> None:
    made = service(store)

    def asked(model: str) -> Task:
        options = {"command": ["sh"]}
        return Task(task_id="t", instructions=("Go.",), harness="command", options=options, model=model)

    made.check(asked("practicum"))
    made.check(asked("practicum@0"))
    with pytest.raises(RequestError, match=r"no model 'practicum@7'.*`practicum@0`") as caught:
        made.check(asked("practicum@7"))
    assert caught.value.param == "model"
