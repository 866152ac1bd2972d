"""A real model folder, small enough to learn in seconds, and the command line run as a user would run it."""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from benchmarks.tiny_model import tiny_model

from tests.e2e.forked import Forked


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that can be trained in seconds."""
    return tiny_model(tmp_path_factory.mktemp("model"))


@dataclass
class Served:
    """A running `practicum serve`."""

    url: str
    process: Forked

    def ready(self) -> dict[str, object]:
        return dict(httpx.get(f"{self.url}/readyz", timeout=10).json())

    def wait_for_version(self, version: int, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while self.ready()["serving_version"] != version:
            assert time.monotonic() < deadline, f"version {version} was never served: {self.ready()}"
            time.sleep(0.05)


class Cli:
    """The command line over one home and one configuration file."""

    def __init__(self, home: Path, toml: str) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.config = home / "practicum.toml"
        self.config.write_text(toml, encoding="utf-8")
        self.options = ["--home", str(home), "--config", str(self.config)]
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(self, *arguments: str) -> Forked:
        return self._start(*arguments, *self.options)

    def _start(self, *arguments: str) -> Forked:
        return Forked(list(arguments), self.environment)

    def run(self, *arguments: str, status: tuple[int, ...] = (0,)) -> str:
        return self.run_plain(*arguments, *self.options, status=status)

    def run_plain(self, *arguments: str, status: tuple[int, ...] = (0,)) -> str:
        """A verb that talks to a server and takes no home."""
        process = self._start(*arguments)
        out, err = process.communicate()
        assert process.returncode in status, f"{arguments}: {process.returncode}\n{out}\n{err}"
        return out

    def key(self, principal: str = "team", *scopes: str) -> str:
        chosen = scopes or ("sample", "feedback")
        return self.run("keys", "create", principal, *(part for s in chosen for part in ("--scope", s))).strip()

    @contextmanager
    def serving(self, *arguments: str) -> Iterator[Served]:
        process = self.start("serve", "--port", "0", *arguments)
        try:
            url = ""
            for line in process.stderr:
                if found := re.search(r"Serving .* at (http://[^/]+)/v1", line):
                    url = found[1]
                    break
            assert url, f"the server stopped with status {process.wait()}"
            yield Served(url, process)
        finally:
            process.kill()
            process.wait()


def settings(tiny_folder: Path) -> str:
    """Settings under which a tiny random model can be promoted: the guards are about text, and it writes none."""
    return f"""
[model]
id = {json.dumps(str(tiny_folder))}
threads = 1
[learn]
rank = 8
alpha = 16
clone_epochs = 16
clone_batch = 8
clone_learning_rate = 0.02
hindsight_max_tokens = 12
hindsight_learning_rate = 0.001
checkpoint_every = 2
max_kl = 50
[evals]
divergence_prompts = 2
[gate]
regression_margin = 1.0
on_topic_margin = 1.5
well_formed_margin = 1.5
max_kl = 100
"""


@pytest.fixture
def cli(tmp_path: Path, tiny_folder: Path) -> Cli:
    return Cli(tmp_path / "home", settings(tiny_folder))
