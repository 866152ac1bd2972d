"""A script: it runs one command, watches over all that comes of it, and does not end before that is dead.

Each command of a sandbox has one keeper, a process of its own between Practicum and the command. Over a socket it gets
the command as one line of JSON and answers with one line: how the command ended, or why it could not be started. Where
the socket closes, for whatever reason (a timeout, a cancelled run, Practicum killed), it kills everything at once; so
nothing depends on Practicum's living long enough to clean up.

On Linux it is the subreaper of its tree: a process that leaves its session and its parent is handed to the keeper and
not to init, and is killed with the rest. Elsewhere a process that daemonises between two looks at the table of
processes can escape.

It is started as `python -I -S keeper.py FD`, so it must import nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

_LINUX = sys.platform.startswith("linux")
_SET_CHILD_SUBREAPER = 36  # prctl(2)
_LOOK_EVERY_S = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")
_CHILDREN_FILES = _LINUX and os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")  # noqa: PTH110


def main() -> None:
    """Serve the one job of the socket whose descriptor is the first argument."""
    control = socket.socket(fileno=int(sys.argv[1]))
    line = control.makefile("rb").readline()
    if not line.endswith(b"\n"):
        return
    job = json.loads(line)
    if _LINUX:
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_w, False)
    os.set_blocking(wake_r, False)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, lambda *_: control.shutdown(socket.SHUT_RDWR))
    try:
        child = _start(job)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = {"failed": getattr(error, "strerror", None) or str(error)}
    else:
        said = _watch(child.pid, job["limits"], control, wake_r)
        _kill_all(child.pid)
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(said).encode() + b"\n")


def _start(job: dict[str, Any]) -> subprocess.Popen[bytes]:
    """The command in a session of its own, with what the kernel can enforce for each process."""

    def limit() -> None:
        for name, value in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_CPU, job["limits"]["cpu_s"]),
            (resource.RLIMIT_FSIZE, job["limits"]["file_bytes"]),
            # Not the address space: JavaScript engines reserve far more of that than they use.
            (resource.RLIMIT_DATA, job["limits"]["memory_bytes"]),
        ):
            if value is not None:
                most = resource.getrlimit(name)[1]
                wanted = int(-(-value // 1))
                value = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
                resource.setrlimit(name, (value, value))

    return subprocess.Popen(
        job["command"],
        env=job["env"],
        cwd=job["cwd"],
        pass_fds=job["fds"],
        start_new_session=True,
        preexec_fn=limit,  # this process has one thread
    )


def _watch(pid: int, limits: dict[str, Any], control: socket.socket, wake: int) -> dict[str, Any]:
    """Wait until the command ends, the socket closes, or the tree is over one of its limits."""
    watched = any(limits[name] is not None for name in ("cpu_s", "memory_bytes", "processes"))
    while True:
        ready, _, _ = select.select([control.fileno(), wake], [], [], _LOOK_EVERY_S if watched else None)
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                while os.read(wake, 4096):
                    pass
        code = _reap(pid)
        if code is not None:
            return {"exit": code, "over": None}
        if control.fileno() in ready:  # nothing is ever sent after the job: this is its end
            return {"exit": None, "over": None}
        over = _over(limits) if watched else None
        if over:
            return {"exit": 128 + signal.SIGKILL, "over": over}


def _reap(pid: int) -> int | None:
    """Bury the dead; the exit status of `pid` where it is among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            dead, status = os.waitpid(-1, os.WNOHANG)
            if dead == 0:
                break
            if dead == pid:
                code = os.waitstatus_to_exitcode(status)
    return None if code is None else code if code >= 0 else 128 - code


def _kill_all(pid: int) -> None:
    """Kill every descendant, until there is none. All are stopped first, so that none forks while others are killed."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    while True:
        stopped: set[int] = set()
        while new := set(descendants(os.getpid())) - stopped:
            for one in new:
                _signal(one, signal.SIGSTOP)
            stopped |= new
        for one in stopped:
            _signal(one, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return  # a subreaper without children has no descendants
        select.select([], [], [], 0.002)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _over(limits: dict[str, Any]) -> str | None:
    """The limit that the tree as a whole is over, if any."""
    cpu_s, memory, count = 0.0, 0, 0
    for pid in descendants(os.getpid()):
        count += 1
        if _LINUX:
            cpu_s += _cpu_s(pid)
            memory += _memory_bytes(pid) if limits["memory_bytes"] is not None else 0
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s += spent.ru_utime + spent.ru_stime
    for name, value, most in (
        ("processes", count, limits["processes"]),
        ("memory", memory, limits["memory_bytes"]),
        ("cpu", cpu_s, limits["cpu_s"]),
    ):
        if most is not None and value > most:
            return name
    return None


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process and of the children that it has waited for."""
    stat = _read(f"/proc/{pid}/stat")
    fields = stat[stat.rfind(")") + 2 :].split()
    return sum(map(int, fields[11:15])) / _TICKS if len(fields) > 15 else 0.0


def _memory_bytes(pid: int) -> int:
    """Resident memory without mapped files, which many processes share."""
    total = 0
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(("RssAnon:", "RssShmem:")):
            total += int(line.split()[1]) * 1024
    return total


def descendants(of: int) -> list[int]:
    """All processes below one."""
    found: list[int] = []
    if _CHILDREN_FILES:
        queue = [of]
        while queue:
            below = list(_children(queue.pop()))
            found += below
            queue += below
        return found
    parents = dict(_table())
    family = {of}
    while new := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= new
        found += new
    return found


def _children(pid: int) -> Iterator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return
    for thread in threads:
        yield from map(int, _read(f"/proc/{pid}/task/{thread}/children").split())


def _table() -> Iterator[tuple[int, int]]:
    """Every process and its parent, where the kernel has no list of children."""
    if _LINUX:
        for name in os.listdir("/proc"):  # noqa: PTH208
            stat = _read(f"/proc/{name}/stat") if name.isdigit() else ""
            if stat:
                yield int(name), int(stat[stat.rfind(")") + 2 :].split()[1])
        return
    ps = subprocess.Popen(["/bin/ps", "-axo", "pid=,ppid="], stdout=subprocess.PIPE, text=True)
    for line in ps.communicate()[0].splitlines():
        pid, parent = line.split()
        if int(pid) != ps.pid:
            yield int(pid), int(parent)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
