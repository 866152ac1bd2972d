"""Three small environments behind OpenEnv's own server: one takes text, one has tools (MCP), one takes numbers.

As a program: `openenv_server.py text|tools|numbers PORT`.
"""

from __future__ import annotations

import sys
import uuid
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, MCPEnvironment, Observation, State, create_fastapi_app


class Guess(Action):
    message: str


class Heard(Observation):
    hint: str


class Pair(Action):
    low: int
    high: int


class WordGame(Environment):
    """Guess a word; each wrong guess costs."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State(episode_id=str(uuid.uuid4()))

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Heard:
        self._word = ["lamp", "tree"][(seed or 0) % 2]
        self._state = State(episode_id=str(uuid.uuid4()))
        return Heard(hint=f"It has {len(self._word)} letters and begins with {self._word[0]}.")

    def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Heard:
        self._state.step_count += 1
        if action.message == "break":
            raise RuntimeError("the guess broke me")
        right = action.message == self._word
        return Heard(hint="Right." if right else "Wrong.", done=right, reward=1.0 if right else -0.25)

    @property
    def state(self) -> State:
        return self._state


class Between(WordGame):
    """Name two numbers around 7."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Heard:
        return Heard(hint="Name two numbers around 7.")

    def step(self, action: Pair, timeout_s: float | None = None, **kwargs: Any) -> Heard:  # type: ignore[override]
        return Heard(hint="", done=True, reward=float(action.low < 7 < action.high))


def tool_environment() -> type:
    from fastmcp import FastMCP

    class Shop(MCPEnvironment):
        """A shop with prices behind a tool."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            server = FastMCP("shop")
            self._bought: list[str] = []
            self._state = State(episode_id=str(uuid.uuid4()))

            @server.tool
            def price(item: str) -> str:
                """What an item costs."""
                return f"{item} costs {len(item)}"

            @server.tool
            def buy(item: str) -> str:
                """Buy an item."""
                self._bought.append(item)
                return "bought"

            super().__init__(server)

        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
            self._bought.clear()
            return Observation(metadata={"note": "Buy the cheaper of fig and plum."})

        def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
            return Observation()

        def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
            return self._paid(super().step(action, timeout_s, **kwargs))

        async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
            return self._paid(await super().step_async(action, timeout_s, **kwargs))

        def _paid(self, seen: Observation) -> Observation:
            if self._bought:
                seen.reward, seen.done = float(self._bought == ["fig"]), True
            return seen

        @property
        def state(self) -> State:
            return self._state

    return Shop


def main(kind: str, port: int) -> None:
    if kind == "tools":
        from openenv.core.env_server import CallToolAction, CallToolObservation

        app = create_fastapi_app(tool_environment(), CallToolAction, CallToolObservation, max_concurrent_envs=8)
    elif kind == "numbers":
        app = create_fastapi_app(Between, Pair, Heard, max_concurrent_envs=8)
    else:
        app = create_fastapi_app(WordGame, Guess, Heard, max_concurrent_envs=8)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
