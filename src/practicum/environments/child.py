"""The process of one rollout: the team's environment, asked over a socket and able to ask for its sandbox.

Lines of JSON both ways. Practicum asks `{"id": n, "do": …}`, one at a time; while it works on that, the process may ask
`{"sandbox": method, …}` and waits for the answer; it ends with `{"id": n, "value": …}`, or `{"id": n, "failed": text}`
where the team's code raised. Each request has a `limit_s`: behind it, code that can be interrupted is, by an alarm, and
`"late": true` is said; what cannot be interrupted is killed from outside.

It must not import more of Practicum than its neighbours, and never the asynchronous side.
"""

from __future__ import annotations

import json
import random
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from practicum.environments import toolbox
from practicum.environments.environment import Environment, Ran
from practicum.environments.loading import named, told

_ROLES = ("system", "user", "assistant", "tool", "developer")
_ERRORS: Mapping[str, type[Exception]] = {"missing": FileNotFoundError, "wrong": ValueError, "failed": OSError}


class Late(BaseException):
    """Raised in the team's code when its time is up. No `except Exception` of theirs swallows it."""


class SingleTurn(Environment):
    """The environment of a verifier function: one prompt, one answer."""

    max_turns = 1

    def __init__(self, verifier: Any) -> None:
        self._verifier = verifier

    def reset(self, task: Mapping[str, Any]) -> Any:
        """The prompt."""
        self._task = task
        return task["prompt"]

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """None."""
        return ()

    def verify(self) -> Any:
        """The verifier's word."""
        return self._verifier(self.answer, self._task)


class Pipe:
    """The socket. A request that comes while an answer is awaited is put off: it is for after what goes on."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours
        self._lines = ours.makefile("rb")
        self._put_off: list[dict[str, Any]] = []

    def request(self) -> dict[str, Any] | None:
        """The next request; None at the end."""
        return self._put_off.pop(0) if self._put_off else self._read()

    def answer(self) -> dict[str, Any] | None:
        """The next line that is no request; None at the end."""
        while (said := self._read()) is not None and "do" in said:
            self._put_off.append(said)
        return said

    def write(self, said: Mapping[str, Any]) -> None:
        """Say something. Raises TypeError, ValueError for what is no JSON, before a byte is sent."""
        self._socket.sendall(json.dumps(said, default=_number).encode() + b"\n")

    def _read(self) -> dict[str, Any] | None:
        line = self._lines.readline()
        return dict(json.loads(line)) if line.endswith(b"\n") else None


class Alarm:
    """Raises `Late` in the team's code, and nowhere else: it stands still while Practicum is waited for."""

    def __init__(self) -> None:
        self._on = False

    @contextmanager
    def within(self, limit_s: float) -> Iterator[None]:
        """Ring behind `limit_s`."""
        try:
            signal.signal(signal.SIGALRM, self._ring)  # each time: the team's code may have one of its own
            self._on = True
            signal.setitimer(signal.ITIMER_REAL, limit_s)
            yield
        finally:
            self._on = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Do not count."""
        was_on, self._on = self._on, False
        left_s = signal.setitimer(signal.ITIMER_REAL, 0)[0]
        try:
            yield
        finally:
            if was_on:
                self._on = True
                signal.setitimer(signal.ITIMER_REAL, max(left_s, 1e-3))

    def _ring(self, *_: object) -> None:
        if self._on:
            raise Late


class Sandbox:
    """`Workspace` over the pipe."""

    def __init__(self, pipe: Pipe, alarm: Alarm) -> None:
        self._pipe = pipe
        self._alarm = alarm

    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Ran:
        """Run a command to its end."""
        words = ["sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
        return Ran(**self._ask("run", command=words, stdin=stdin, env=dict(env or {}), timeout_s=timeout_s))

    def read(self, path: str, *, most_bytes: int = 1_000_000) -> str:
        """A file's text."""
        return str(self._ask("read", path=str(path), most_bytes=most_bytes))

    def write(self, path: str, text: str, *, executable: bool = False) -> None:
        """Write a file."""
        self._ask("write", path=str(path), text=str(text), executable=executable)

    def list_files(self) -> list[str]:
        """Paths of the files."""
        return list(self._ask("list_files"))

    def _ask(self, method: str, **arguments: Any) -> Any:
        with self._alarm.stopped():
            self._pipe.write({"sandbox": method, **arguments})
            said = self._pipe.answer()
        if said is None:
            raise Late("Practicum is gone")
        if "error" in said:
            raise _ERRORS[said["kind"]](said["error"])
        return said["value"]


class World:
    """The team's object and what Practicum may ask of it."""

    def __init__(self, sandbox: Sandbox, module: ModuleType) -> None:
        self._sandbox = sandbox
        self._module = module
        self._env = Environment()
        self._tools: set[str] = set()

    def start(self, *, name: str, task: Any, system: str | None, seed: int, max_turns: int | None) -> dict[str, Any]:
        """Make the object, seed what is random, reset."""
        env = self._env = _made(named(self._module, name), name)
        random.seed(seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(seed % 2**32)
        env.rng = random.Random(seed)
        env.sandbox = self._sandbox
        env.messages = []
        first = env.reset(task)
        messages = [{"role": "user", "content": first}] if isinstance(first, str) else _messages(first)
        system = env.system if system is None else system
        if system is not None:
            messages = [one for one in messages if one["role"] != "system"]
            messages.insert(0, {"role": "system", "content": system})
        env.messages.extend(messages)
        tools = [dict(tool) for tool in env.tools()]
        self._tools = {tool["function"]["name"] for tool in tools}
        turns = env.max_turns if max_turns is None else max_turns
        closes = type(env).close is not Environment.close
        return {
            "messages": messages, "tools": tools, "max_turns": int(turns), "done": bool(env.done), "closes": closes,
        }  # fmt: skip

    def answered(self, *, message: dict[str, Any], truncated: bool) -> dict[str, Any]:
        """The policy's word, put down; where it calls no tool, what the world says to it."""
        env = self._env
        env.messages.append(message)
        env.answer, env.truncated = message.get("content") or "", truncated
        if message.get("tool_calls"):
            return {"messages": [], "done": bool(env.done)}
        try:
            said = env.reply(env.answer)
        except Exception as error:
            return self._said({"role": "user", "content": _shown(error)}, raised=told(error))
        if said is None or env.done:
            return {"messages": [], "done": True}
        if not isinstance(said, str):
            raise TypeError(f"`reply` gave {type(said).__name__}, and must give text or None")
        return self._said({"role": "user", "content": said})

    def tool(self, *, call_id: str, name: str, arguments: str) -> dict[str, Any]:
        """Call a tool. A fault of the policy's, and what the tool raises, is the tool's result."""
        raised = None
        try:
            content = self._called(name, arguments)
        except Exception as error:
            content, raised = _shown(error), told(error)
        return self._said({"role": "tool", "tool_call_id": call_id, "content": content}, raised=raised)

    def _called(self, name: str, arguments: str) -> str:
        if name not in self._tools:
            offered = ", ".join(sorted(self._tools)) or "none"
            return f"Error: there is no tool {name[:80]!r}. There are: {offered}."
        try:
            given = json.loads(arguments or "{}")
        except ValueError as error:
            return f"Error: the arguments of {name} are no JSON: {error}."
        if not isinstance(given, dict):
            return f"Error: the arguments of {name} must be a JSON object."
        value = self._env.call_tool(name, given)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)

    def verify(self) -> Any:
        """What the final state is worth, as the team says it."""
        value = self._env.verify()
        return dict(value) if isinstance(value, Mapping) else value

    def close(self) -> None:
        """The team's own way out."""
        self._env.close()

    def interrupted(self, do: str, asked: Mapping[str, Any], limit_s: float) -> dict[str, Any] | None:
        """What a tool that was interrupted gave; None where the whole environment is lost by it."""
        if do != "tool":
            return None
        content = f"Error: {asked['name']} took longer than {limit_s:g} s."
        return self._said({"role": "tool", "tool_call_id": asked["call_id"], "content": content})

    def _said(self, message: dict[str, Any], raised: str | None = None) -> dict[str, Any]:
        self._env.messages.append(message)
        return {"messages": [message], "done": bool(self._env.done), "raised": raised}


def prepare() -> None:
    """Before the fork, what each fork would do anew: the tools of all classes there are."""
    kinds = [Environment]
    for kind in kinds:
        kinds += kind.__subclasses__()
        with suppress(Exception):  # said when the class is used
            toolbox.toolbox(kind)


def serve(ours: socket.socket, module: ModuleType) -> None:
    """Answer until the socket closes."""
    pipe, alarm = Pipe(ours), Alarm()
    world = World(Sandbox(pipe, alarm), module)
    while (asked := pipe.request()) is not None:
        number = asked.pop("id")
        said = _obeyed(world, alarm, **asked)
        try:
            pipe.write({"id": number, **said})
        except (TypeError, ValueError, RecursionError) as error:
            pipe.write({"id": number, "failed": f"`{asked['do']}` gave what is no JSON: {error}"})


def _obeyed(world: World, alarm: Alarm, *, do: str, limit_s: float, **asked: Any) -> dict[str, Any]:
    try:
        with alarm.within(limit_s):
            return {"value": getattr(world, do)(**asked)}
    except Late:
        return {"late": True, "value": world.interrupted(do, asked, limit_s)}
    except BaseException as error:  # the team's code may raise anything, SystemExit too
        return {"failed": told(error)}


def _made(code: Any, name: str) -> Environment:
    if isinstance(code, type):
        if not issubclass(code, Environment):
            raise TypeError(f"{name} is no practicum.environments.Environment")
        return code()
    if not callable(code):
        raise TypeError(f"{name} is neither an Environment nor a verifier function")
    return SingleTurn(code)


def _messages(given: Any) -> list[dict[str, Any]]:
    """Chat messages as `reset` gave them. Raises TypeError for anything else."""
    if not isinstance(given, Sequence) or not given or not all(isinstance(one, Mapping) for one in given):
        raise TypeError(f"`reset` gave {str(given)[:100]!r}, and must give text or a list of chat messages")
    for one in given:
        if one.get("role") not in _ROLES:
            raise TypeError(f"`reset` gave a message of the role {one.get('role')!r}")
    return [dict(one) for one in given]


def _shown(error: Exception) -> str:
    """An exception as the policy sees it. A fault in the arguments speaks for itself."""
    return f"Error: {error}" if type(error) is ValueError else f"Error: {type(error).__name__}: {error}"


def _number(value: Any) -> Any:
    """Numbers of numpy's and torch's, which JSON does not know. Raises TypeError for anything else."""
    if callable(item := getattr(value, "item", None)):
        return item()
    raise TypeError(f"a {type(value).__name__}")
