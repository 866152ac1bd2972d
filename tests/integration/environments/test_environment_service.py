"""In-house environments through the configuration and the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.environments.environment_world import call, world
from tests.integration.environments.ledger import Ledger
from tests.integration.harnesses.rollout_world import task as asks
from typer.testing import CliRunner

from practicum.capture.stalls import Stalls
from practicum.cli.main import app
from practicum.cli.rollout_host import rollout_service
from practicum.cli.wiring import rollout_service as for_tasks
from practicum.config import Config, RolloutsConfig
from practicum.engines.scripted import Step
from practicum.environments import multi_turn, single_turn
from practicum.errors import RequestError
from practicum.store import open_store


def test_a_service_takes_environments_of_the_configured_folder_and_a_run_those_beside_its_tasks(
    tmp_path: Path,
) -> None:
    (tmp_path / "folder").mkdir()
    for file in (tmp_path / "folder" / "mine.py", tmp_path / "beside.py"):
        file.write_text("")
    config = Config(home=tmp_path, rollouts=RolloutsConfig(environments_folder=tmp_path / "folder"))
    with open_store(tmp_path / "practicum.db") as store:
        served = rollout_service(config, store, Stalls(), "")
        served.check(single_turn("t", "x", "mine.py:right"))
        for refused in (f"{tmp_path}/beside.py:right", "os:system"):
            with pytest.raises(RequestError) as error:
                served.check(single_turn("t", "x", refused))
            assert error.value.param == "options.environment"
        run = for_tasks(config, store, Stalls(), tasks=tmp_path / "tasks.py")("")
        for allowed in ("beside.py:right", f"{tmp_path}/folder/mine.py:right", "os:system"):
            run.check(single_turn("t", "x", allowed))
        without = rollout_service(Config(home=tmp_path), store, Stalls(), "")
        with pytest.raises(RequestError, match=r"rollouts\.environments_folder"):
            without.check(single_turn("t", "x", "mine.py:right"))
        with pytest.raises(RequestError, match=r"graders\.environment"):
            served.check(single_turn("t", "x", "mine.py:right", grader={"timeout": 3}))
        with pytest.raises(RequestError, match="may not hold messages"):
            served.check(single_turn("t", "x", "mine.py:right", more={"messages": []}))


async def test_the_command_line_shows_rollouts_of_environments_and_of_other_harnesses(tmp_path: Path) -> None:
    script = [call("row", index=1), Step(content="12")]
    with open_store(tmp_path / "practicum.db") as store:
        async with world(tmp_path, store, script) as made:
            own = multi_turn("ledger-1", Ledger, {"rows": [5, 7]}, max_tokens=256)
            ids = []
            for wanted in (own, asks("agent")):
                (one,) = await made.service.collect(await made.service.submit(wanted))
                ids.append(one.rollout.rollout_id)
    shown = [CliRunner().invoke(app, ["rollout", "show", one, "--home", str(tmp_path)]) for one in ids]
    assert [one.exit_code for one in shown] == [0, 0], shown
    for words in ("ledger-1 #0", 'row {"index": 1}', "tool", "1.000  by environment", "✔ trains"):
        assert words in shown[0].stdout
    for words in ("by reads", "Say lamp.", "✔ trains"):
        assert words in shown[1].stdout
