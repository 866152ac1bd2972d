"""The command line in processes of their own that are forked from one which has imported everything already.

To import torch, transformers and peft takes several seconds of processor time, and a test that kills a learner six
times would spend most of its time on that. A forked process has its own arguments, environment, output and exit status,
and can be stopped and killed like any other. What an import costs, and what it must not load, is tested with fresh
interpreters in `test_cli.py`.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.e2e.imported"])


class Forked:
    """What the tests use of `subprocess.Popen`."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        out, to_out = _CONTEXT.Pipe(duplex=False)
        err, to_err = _CONTEXT.Pipe(duplex=False)
        run = (arguments, dict(environment), str(Path.cwd()), to_out, to_err)
        self._process = _CONTEXT.Process(target=_main, args=run, daemon=True)
        self._process.start()
        to_out.close()
        to_err.close()
        self.stdout, self.stderr = _text(out), _text(err)
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("practicum", timeout or 0.0)
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        said = ["", ""]

        def read(index: int, stream: IO[str]) -> None:
            said[index] = stream.read()

        readers = [
            threading.Thread(target=read, args=one, daemon=True) for one in enumerate((self.stdout, self.stderr))
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return said[0], said[1]

    def kill(self) -> None:
        self._process.kill()


def _text(end: Connection) -> IO[str]:
    with end:
        return os.fdopen(os.dup(end.fileno()), encoding="utf-8")


def _main(
    arguments: list[str], environment: dict[str, str], folder: str, to_out: Connection, to_err: Connection
) -> None:
    for number, end in ((1, to_out), (2, to_err)):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["practicum", *arguments]
    from practicum.cli.main import main

    main()
