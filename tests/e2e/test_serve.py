"""How `practicum serve` begins, or does not: each refusal says why and what to do, and costs nothing.

Pins: a server that cannot come up prints no key, so the first one that does is the one that shows it; a second service
of rollouts over one store is refused at the start.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path

from tests.e2e.conftest import Cli

SCRIPTED = '[model]\nid = "scripted"\n'


def refused(cli: Cli, *arguments: str) -> str:
    process = cli.start("serve", *arguments)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2 and out == "", err
    assert "Traceback" not in err and "Your key" not in err
    return err


def test_a_taken_port_names_the_way_out_and_the_key_is_shown_by_the_server_that_comes_up(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home", SCRIPTED)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = refused(cli, "--port", str(port))
    assert f"Port {port} of 127.0.0.1 is taken" in said and "--port 0" in said
    process = cli.start("serve", "--port", "0")
    try:
        first = process.stderr.readline()
        assert re.fullmatch(r"Your key \(shown once; it may do everything\): \S+\n", first)
    finally:
        process.kill()
        process.communicate()


def test_a_second_service_of_rollouts_over_one_store_is_refused_at_the_start(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home", SCRIPTED)
    with cli.serving("--rollouts") as served:
        said = refused(cli, "--rollouts", "--port", "0")
        assert f"Another rollout service runs the rollouts of {cli.home}" in said and "--home" in said
        assert served.ready()["status"] == "ready"
    with cli.serving("--rollouts"):
        pass  # what a killed one held is free again
