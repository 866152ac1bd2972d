from __future__ import annotations

import subprocess
import sys
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from practicum.environments import Environment
from practicum.environments.toolbox import toolbox


class Point(BaseModel):
    x: int
    title: str = ""


class World(Environment):
    kept = 3

    def move(self, to: Point, how: Literal["fast", "slow"] = "fast", times: Annotated[int, Field(ge=1)] = 1) -> str:
        """Move there.

        More than one line.
        """
        return f"{type(to).__name__} {to.x} {how} {times}"

    def anything(self, value, model_name=None):  # type: ignore[no-untyped-def]
        """Take anything."""
        return [value, model_name]

    def unsaid(self) -> None:
        pass

    def _hidden(self) -> None:
        """Not for the policy."""

    @property
    def seen(self) -> int:
        """Not a tool."""
        return 1

    @staticmethod
    def still() -> int:
        """Not a tool either."""
        return 1

    def verify(self) -> float:
        """What it is worth."""
        return 1.0


class Smaller(World):
    def move(self) -> str:  # type: ignore[override]
        """Move on."""
        return "on"


def test_methods_with_a_docstring_are_tools_and_type_hints_are_their_schema() -> None:
    tools = [dict(tool) for tool in World().tools()]
    assert [tool["function"]["name"] for tool in tools] == ["move", "anything"]
    move, anything = (tool["function"] for tool in tools)
    assert move["description"] == "Move there.\n\nMore than one line."
    assert move["parameters"]["required"] == ["to"] and move["parameters"]["additionalProperties"] is False
    properties: dict[str, Any] = move["parameters"]["properties"]
    assert properties["how"] == {"default": "fast", "enum": ["fast", "slow"], "type": "string"}
    assert properties["times"] == {"default": 1, "minimum": 1, "type": "integer"}
    # A parameter may be called `title`; the titles that Pydantic makes are left out.
    assert move["parameters"]["$defs"]["Point"]["properties"] == {
        "x": {"type": "integer"}, "title": {"default": "", "type": "string"},
    }  # fmt: skip
    assert anything["parameters"]["properties"] == {"value": {}, "model_name": {"default": None}}


def test_arguments_are_checked_and_become_what_the_hints_say() -> None:
    world = World()
    assert world.call_tool("move", {"to": {"x": "4"}, "times": 2}) == "Point 4 fast 2"
    assert world.call_tool("anything", {"value": {"a": 1}}) == [{"a": 1}, None]
    for arguments, said in (
        ({"to": {"x": "a"}}, "`to.x`"), ({}, "`to`"), ({"to": {"x": 1}, "times": 0}, "`times`"),
        ({"to": {"x": 1}, "loud": True}, "`loud`"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            world.call_tool("move", arguments)


def test_a_subclass_may_change_a_tool() -> None:
    assert list(toolbox(Smaller)) == ["anything", "move"]
    assert Smaller().call_tool("move", {}) == "on"


def test_a_method_that_cannot_be_a_tool_is_named() -> None:
    class Waits(Environment):
        async def wait(self) -> None:
            """Wait."""

    class Takes(Environment):
        def take(self, *all: int) -> None:
            """Take."""

    for kind, said in ((Waits, r"Waits\.wait must be a plain method"), (Takes, r"Takes\.take: the parameter `all`")):
        with pytest.raises(TypeError, match=said):
            toolbox(kind)


def test_what_the_environments_own_process_imports_stays_small() -> None:
    code = "import practicum.environments.child, sys; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    ours = {name for name in loaded if name.startswith("practicum.")}
    assert ours == {
        "practicum.environments", "practicum.environments.child", "practicum.environments.environment",
        "practicum.environments.loading", "practicum.environments.tasks", "practicum.environments.toolbox",
        "practicum.errors", "practicum.types", "practicum.types.outcomes", "practicum.types.rollouts",
    }  # fmt: skip
    assert not {"torch", "numpy", "httpx", "fastapi", "asyncio"} & set(loaded)
