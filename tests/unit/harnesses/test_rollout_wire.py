"""Bodies of the rollout routes: whatever comes in is taken or refused by name, whatever is on record goes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.config import Config
from practicum.engines.scripted import ScriptedSampler
from practicum.gateway import authenticate, create_app
from practicum.harnesses.routes import router
from practicum.harnesses.service import RolloutService
from practicum.harnesses.wire import TaskBody, rollout_body
from practicum.policies import Registry
from practicum.renderers import ByteTokenizer, Renderer
from practicum.sandboxes.local import LocalProvider
from practicum.store import create_key, open_store
from practicum.types.outcomes import Outcome
from practicum.types.rollouts import Rollout, Task

TASK: dict[str, Any] = {
    "task_id": "t",
    "instructions": ["a"],
    "harness": "h",
    "options": {"a": 1},
    "files": {"a": "b"},
    "env": {"A": "b"},
    "graders": {},
    "num_samples": 2,
    "priority": -1,
    "timeouts": {"agent_s": 5},
    "role": "agent",
    "model": None,
    "keep_open_s": 1.5,
    "stop_after": 1,
    "callback_url": "http://127.0.0.1:1/x",
    "submission_key": None,
}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def test_a_whole_body_is_the_task_that_it_says() -> None:
    task = TaskBody.model_validate(TASK).task()
    assert isinstance(task, Task)
    assert (task.instructions, task.timeouts.agent_s, task.keep_open_s, task.stop_after) == (("a",), 5.0, 1.5, 1)
    assert TaskBody.model_validate({"task_id": "t", "instructions": ["a"], "harness": "h"}).task() == Task(
        task_id="t", instructions=("a",), harness="h"
    )


async def test_no_body_is_a_500(tmp_path: Path) -> None:
    with open_store(tmp_path / "practicum.db") as store:
        service = RolloutService(store, harnesses={"h": object()}, sandboxes=LocalProvider(tmp_path), gateway="")  # type: ignore[dict-item]
        key = create_key(store, "team", ["rollout"])
        registry = Registry(store, tmp_path / "policies")
        app = create_app(
            Config(home=tmp_path), store, registry, ScriptedSampler(), Renderer(ByteTokenizer()),
            routers=[router(service, authenticate)],
        )  # fmt: skip
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", headers={"authorization": f"Bearer {key}"}
        ) as http:
            seen: set[int] = set()

            async def send(body: Any) -> None:
                content = json.dumps(body).encode()
                answer = await http.post("/v1/rollouts", content=content, headers={"content-type": "application/json"})
                seen.add(answer.status_code)
                assert answer.status_code in (201, 400), (body, answer.text)
                if answer.status_code == 400:
                    problem = answer.json()
                    assert problem["status"] == 400 and problem["code"] and problem["detail"]
                    assert problem["param"], (body, problem)

            bodies: list[Any] = []
            collect_bodies(bodies)
            for body in bodies:
                await send(body)
            assert seen == {201, 400}


def collect_bodies(bodies: list[Any]) -> None:
    """Generated bodies: a good one with one field changed, or anything at all."""

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(st.sampled_from(sorted(TASK)), ANYTHING, st.booleans())
    def gather(name: str, value: Any, alone: bool) -> None:
        bodies.append(value if alone else {**TASK, name: value})

    gather()


def test_text_without_utf8_goes_out() -> None:
    odd = Rollout(
        rollout_id="r",
        group_id="g",
        task_id="t",
        role="agent",
        index=0,
        state="ended",
        instructions=("a",),
        cause="finished",
        output="x\ud800y",
        created_at=1.0,
        outcomes=(Outcome(name="n", reward=None, reason="\udfff"),),
    )
    body = rollout_body(odd)
    assert (body.output, body.outcomes[0].reason) == ("x?y", "?")
    assert json.loads(body.model_dump_json())["output"] == "x?y"
