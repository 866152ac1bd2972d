"""Environments behind a running OpenEnv server, over its WebSocket.

    TRAIN = tasks("http://127.0.0.1:8000", [{"seed": one} for one in range(64)], max_tokens=64)

A rollout has a session of its own on the server. Where the server's actions are calls of tools (MCP), the policy gets
those tools; where they have a field of text, the policy's answer goes there; any other is written by the policy as a
JSON object. The reward is the sum of what the server gave in the episode.

Its protocol is three messages of JSON, so nothing of the `openenv` package is needed on this side: an environment's
server, with all that it brings, stays where it runs. What goes wrong on the server with an action of the policy's is
told to the policy; a server that is gone ends the rollout unscored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack
from urllib.parse import urlsplit

import httpx

from practicum.environments.environment import Environment
from practicum.environments.tasks import Settings, multi_turn
from practicum.errors import MissingExtra, UsageError
from practicum.types.rollouts import Task

try:
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import ClientConnection, connect
except ImportError as error:
    raise MissingExtra(
        f"The client of OpenEnv servers needs websockets ({error}).",
        hint="Install it: pip install 'practicum[openenv]'",
    ) from error

Form = Literal["tools", "text", "json"]
_CONNECT_S, _MOST_BYTES = 10.0, 100_000_000
_WRONG_ACTION = frozenset({"VALIDATION_ERROR", "EXECUTION_ERROR"})  # what an action can bring about
# Fields of every observation that are no part of what is seen.
_NOT_SEEN = frozenset({"done", "reward", "metadata"})


class ServerLost(BaseException):
    """The server is gone or refuses the session. No fault of the policy's, so no `except Exception` may tell it one."""


def tasks(
    url: str,
    resets: Sequence[Mapping[str, Any]],
    *,
    name: str | None = None,
    action: str | None = None,
    see: str | None = None,
    first: str = "",
    reward: Literal["sum", "last"] = "sum",
    message_timeout_s: float = 60.0,
    max_turns: int = 16,
    **settings: Unpack[Settings],
) -> list[Task]:
    """A task for each entry of `resets`, the arguments of the environment's `reset`: `seed`, `split` and `index`, …

    Args:
        url: the server's address, http or ws. It is asked once, now, what its actions look like.
        resets: JSON objects.
        name: begins the tasks' ids; the server's own name for the environment if None.
        action: the field of an action that the policy's answer goes to; None finds it out.
        see: the field of an observation that the policy reads; None shows its only field of text, or all as JSON.
        first: what the policy is told before the first observation: what it is to do, where the environment itself
            does not say.
        reward: the `sum` of an episode's rewards, or the `last` one.
        message_timeout_s: the server's time for each answer.
        max_turns: most model calls.
        settings: as `multi_turn` takes them.

    Raises: MissingExtra; UsageError for a server that does not answer, and for an `action` that it does not take.
    """
    form, field = _form(_get(url, "schema").get("action", {}), action)
    name = name or str(_get(url, "metadata").get("name", "openenv"))
    given = {
        "url": url, "form": form, "field": field, "see": see, "first": first, "reward": reward,
        "message_timeout_s": message_timeout_s,
    }  # fmt: skip
    return [
        multi_turn(f"{name}/{_label(reset)}", Remote, {**given, "reset": dict(reset)}, max_turns=max_turns, **settings)
        for reset in resets
    ]


class Remote(Environment):
    """One session on a server."""

    def reset(self, task: Mapping[str, Any]) -> str:
        """Open the session and begin an episode."""
        self._task = task
        self._rewards: list[float] = []
        self._ends: str = ""
        self._socket = _connected(task["url"])
        observation = self._exchange({"type": "reset", "data": task["reset"]})
        return "\n\n".join(text for text in (task["first"], self._seen(observation)) if text) or "Begin."

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The server's tools, where its actions are calls of tools."""
        if self._task["form"] != "tools":
            return ()
        listed = self._exchange({"type": "step", "data": {"type": "list_tools"}})
        return [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool.get("description", ""),
                    "parameters": tool["input_schema"],
                },
            }
            for tool in listed["tools"]
        ]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool on the server. Raises ValueError with what the server found wrong."""
        seen = self._exchange(
            {"type": "step", "data": {"type": "call_tool", "tool_name": name, "arguments": arguments}}
        )
        if fault := seen.get("error"):
            raise ValueError(str(fault.get("message", fault) if isinstance(fault, Mapping) else fault))
        return _result(seen.get("result"))

    def reply(self, text: str) -> str | None:
        """Act on the server with the policy's answer. An answer among calls of tools ends the episode."""
        if self._task["form"] == "tools":
            return None
        try:
            data = _object(text) if self._task["form"] == "json" else {self._task["field"]: text}
            observation = self._exchange({"type": "step", "data": data})
        except ValueError as error:
            return f"Error: {error}"
        return None if self.done else self._seen(observation) or "Go on."

    def verify(self) -> Mapping[str, float]:
        """The rewards that the server gave. Raises ValueError where it gave none."""
        if not self._rewards:
            raise ValueError("the server gave no reward in this episode")
        total = sum(self._rewards) if self._task["reward"] == "sum" else self._rewards[-1]
        return {"reward": total, "steps_rewarded": float(len(self._rewards))}

    def close(self) -> None:
        """End the session, so that the server need not wait for it to go silent."""
        self._socket.send(json.dumps({"type": "close"}))
        self._socket.close()

    def _exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message, take the reward and the end from the answer, give the observation.

        Raises: ValueError for an action that the server does not take; ServerLost.
        """
        try:
            self._socket.send(json.dumps(message))
            said = json.loads(self._socket.recv(timeout=self._task["message_timeout_s"]))
        except (WebSocketException, OSError, ValueError) as error:  # a timeout is an OSError
            raise ServerLost(f"the server {self._task['url']} is lost: {type(error).__name__}: {error}") from error
        data = said.get("data", {})
        if said.get("type") == "error":
            fault = _fault(data)
            if message["type"] == "step" and data.get("code") in _WRONG_ACTION:
                raise ValueError(fault)
            raise ServerLost(f"the server {self._task['url']} refuses: {fault}")
        if data.get("reward") is not None:
            self._rewards.append(float(data["reward"]))
        self.done = self.done or bool(data.get("done"))
        return dict(data.get("observation", {}))

    def _seen(self, observation: Mapping[str, Any]) -> str:
        field = self._task["see"]
        if field is not None:
            if field not in observation:
                raise KeyError(f"an observation has no `{field}`; it has {', '.join(observation)}")
            return _result(observation[field])
        shown = {name: value for name, value in observation.items() if name not in _NOT_SEEN and value is not None}
        texts = [value for value in shown.values() if isinstance(value, str)]
        return texts[0] if len(texts) == 1 else json.dumps(shown, ensure_ascii=False) if shown else ""


def _form(schema: Mapping[str, Any], action: str | None) -> tuple[Form, str]:
    """How the policy's word becomes an action. Raises UsageError."""
    fields = {name: one for name, one in schema.get("properties", {}).items() if name != "metadata"}
    if action is not None:
        if action not in fields:
            raise UsageError(f"The server's actions have no `{action}`.", hint=f"There are: {', '.join(fields)}.")
        return "text", action
    # The bare class of actions, and the one for tools: both stand for calls of tools.
    if not fields or "tool_name" in fields:
        return "tools", ""
    needed = [name for name in fields if name in schema.get("required", ())] or list(fields)
    if len(needed) == 1 and fields[needed[0]].get("type") == "string":
        return "text", needed[0]
    return "json", ""


def _connected(url: str) -> ClientConnection:
    address = re.sub(r"^http", "ws", url).rstrip("/") + "/ws"
    try:
        return connect(address, open_timeout=_CONNECT_S, max_size=_MOST_BYTES, proxy=None)
    except (WebSocketException, OSError) as error:
        raise ServerLost(f"no session with the server {url}: {type(error).__name__}: {error}") from error


def _get(url: str, what: str) -> Mapping[str, Any]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "ws", "wss") or not parts.netloc:
        raise UsageError(f"{url!r} is no server's address.", hint="Give http://HOST:PORT.", param="url")
    address = re.sub(r"^ws", "http", url).rstrip("/")
    try:
        answer = httpx.get(f"{address}/{what}", timeout=_CONNECT_S, trust_env=False)
        return dict(answer.raise_for_status().json())
    except (httpx.HTTPError, ValueError) as error:
        raise UsageError(
            f"The OpenEnv server {url} does not say its {what}: {type(error).__name__}: {error}.",
            hint="Start it before the tasks are made.",
            param="url",
        ) from error


def _object(text: str) -> dict[str, Any]:
    """The JSON object of an action, in a code fence or not. Raises ValueError."""
    fenced = re.search(r"```(?:json)?\s*(.*?)```", text, re.DOTALL)
    found = json.loads(fenced[1] if fenced else text)
    if not isinstance(found, dict):
        raise ValueError("an action is a JSON object")
    return found


def _result(value: Any) -> str:
    """What a tool gave, as text: of MCP's content, the texts."""
    if isinstance(value, Mapping) and isinstance(content := value.get("content"), list):
        texts = [one["text"] for one in content if isinstance(one, Mapping) and isinstance(one.get("text"), str)]
        if texts:
            return "\n".join(texts)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _fault(data: Mapping[str, Any]) -> str:
    """What the server found wrong, with the fields at fault."""
    named = [f"{'.'.join(map(str, one.get('loc', ())))}: {one.get('msg')}" for one in data.get("errors", ())]
    return "; ".join([str(data.get("message", "an error without words")), *named])


def _label(reset: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in reset.items()) or "0"
