"""A script: it loads a team's file once, and forks a process from that state for each rollout.

So a rollout's process costs a few milliseconds, has the file's imports behind it, and finds module globals as they were
after loading, whatever another rollout did to them. Practicum talks to it over a socket, one line of JSON each:

    {"load": …}             first; answered by {"loaded": true} or {"failed": text}
    {"fork": N} + a socket  a process that serves the socket, as `child.py` says
    {"end": N}              kill that process and all that it started; {"ended": N, "status": S} tells any such end

Where the socket closes, it kills all of them and ends. On Linux a process and everything that it started are found
whatever they did to their sessions; elsewhere one that daemonises can escape. It runs under a keeper, so it dies with
Practicum even while the team's file is still loading.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_LINUX = sys.platform.startswith("linux")
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_MOST_BYTES, _MOST_FDS = 1 << 16, 64


def main() -> None:
    """Serve the socket whose descriptor is the first argument."""
    control = socket.socket(fileno=int(sys.argv[1]))
    first, _, rest = _line(control).partition(b"\n")
    asked = json.loads(first or b"{}")
    sys.path[:] = asked.get("path", sys.path)
    from practicum.environments import child, loading
    from practicum.sandboxes.keeper import descendants

    try:
        module = loading.module(asked["load"])
    except BaseException as error:  # the file is the team's own: it may even exit
        control.sendall(json.dumps({"failed": loading.told(error)}).encode() + b"\n")
        return
    child.prepare()
    control.sendall(b'{"loaded": true}\n')
    gc.collect()
    gc.freeze()  # what is shared stays shared: a collection in a fork would copy it
    Forker(control, module, child.serve, descendants).run(rest)


def _line(control: socket.socket) -> bytes:
    data = b""
    while b"\n" not in data and (chunk := control.recv(_MOST_BYTES)):
        data += chunk
    return data


class Forker:
    """The loop. `serve` is what a fork runs, `descendants` gives the processes below one."""

    def __init__(
        self,
        control: socket.socket,
        module: ModuleType,
        serve: Callable[[socket.socket, ModuleType], None],
        descendants: Callable[[int], list[int]],
    ) -> None:
        self._control = control
        self._module = module
        self._serve = serve
        self._descendants = descendants
        self._prctl: Any = ctypes.CDLL(None).prctl if _LINUX else lambda *_: 0
        self._number_of: dict[int, int] = {}
        self._pid_of: dict[int, int] = {}

    def run(self, data: bytes) -> None:
        """Until the socket closes."""
        self._prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        wake_r, wake_w = os.pipe()
        for end in (wake_r, wake_w):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        fds: list[int] = []
        try:
            while True:
                *lines, data = data.split(b"\n")
                for line in lines:
                    self._obey(json.loads(line), fds, (wake_r, wake_w))
                ready, _, _ = select.select([self._control.fileno(), wake_r], [], [])
                if wake_r in ready:
                    with contextlib.suppress(BlockingIOError):
                        while os.read(wake_r, 4096):
                            pass
                    self._bury()
                if self._control.fileno() in ready:
                    chunk, came, _, _ = socket.recv_fds(self._control, _MOST_BYTES, _MOST_FDS)
                    if not chunk:
                        return
                    data += chunk
                    fds += came
        finally:
            for pid in list(self._number_of):
                self._kill(pid)

    def _obey(self, asked: dict[str, Any], fds: list[int], wake: tuple[int, int]) -> None:
        if "end" in asked:
            if (pid := self._pid_of.get(asked["end"])) is not None:
                self._kill(pid)
            return
        with socket.socket(fileno=fds.pop(0)) as theirs:
            pid = os.fork()
            if pid == 0:
                self._become_child(theirs, wake)
        self._number_of[pid], self._pid_of[asked["fork"]] = asked["fork"], pid

    def _become_child(self, theirs: socket.socket, wake: tuple[int, int]) -> None:
        status = 1
        try:
            os.setsid()
            self._prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            self._prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in wake:
                os.close(end)
            self._control.close()
            self._serve(theirs, self._module)
            status = 0
        finally:
            os._exit(status)  # nothing of the forker's may run here

    def _kill(self, pid: int) -> None:
        """All are stopped first, so that none forks while others are killed."""
        _signal(pid, signal.SIGSTOP)
        stopped: set[int] = set()
        while new := set(self._descendants(pid)) - stopped:
            for one in new:
                _signal(one, signal.SIGSTOP)
            stopped |= new
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        for one in (*stopped, pid):
            _signal(one, signal.SIGKILL)

    def _bury(self) -> None:
        """Wait for the dead, tell of those that were rollouts', and kill what such a one left behind."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                number = self._number_of.pop(pid, None)
                if number is None:
                    continue
                del self._pid_of[number]
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
                code = os.waitstatus_to_exitcode(status)
                self._control.sendall(json.dumps({"ended": number, "status": code}).encode() + b"\n")
        if _LINUX:
            below = self._descendants(os.getpid())
            known = set(self._number_of)
            for pid in self._number_of:
                known.update(self._descendants(pid))
            for pid in set(below) - known:
                _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


if __name__ == "__main__":
    main()
