"""A program for the interpreter that has `verifiers`: list a taskset's tasks, or play one against a model endpoint.

Everything in an episode is the library's: its environment's `run`, its harness and interception, its tools' servers,
its rewards. Only the model is Practicum's, as the OpenAI endpoint that the library's own client calls.

    list:  stdin {"taskset", "size", …}; stdout the tasks' data as JSON, one a line
    play FILE:  FILE the same with one task's data; the reward goes to REWARD in the working folder

It needs nothing of Practicum, which may lie in another environment.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

REWARD = "verifiers_reward.json"


def listed(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The wire data of the tasks asked for, as the library hands tasks to its own workers."""
    config = _config(asked)
    taskset = vf.load_taskset(config.taskset)
    if asked["seed"] is not None and taskset.bounded:
        taskset = taskset.shuffle(asked["seed"])
    tasks = list(taskset.skip(asked["skip"]).take(asked["size"]))
    return [{**task.data.model_dump(mode="json"), "practicum_prompt": task.data.prompt_text} for task in tasks]


async def played(asked: dict[str, Any]) -> dict[str, float]:
    """The rewards of an episode. Raises RuntimeError where the library could not bring it to its end."""
    env = vf.load_environment(_config(asked))
    kind = type(env.taskset).task_type()
    task = kind(kind.data_type().model_validate(asked["task"]), env.config.taskset.task)
    endpoint = vf.EvalClientConfig(base_url=os.environ["PRACTICUM_BASE_URL"] + "/v1", api_key_var="PRACTICUM_API_KEY")
    model = vf.ModelContext(
        model=os.environ["PRACTICUM_MODEL"], client=endpoint, sampling=vf.SamplingConfig(**asked["sampling"])
    )
    async with env.serving():
        episode = await env.run_episode(task, model)
    if not episode.ok or len(episode.traces) != 1:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        told = "; ".join(f"{error.type}: {error.message}" for error in errors)
        raise RuntimeError(told or f"the episode has {len(episode.traces)} runs of agents, and one reward needs one")
    (trace,) = episode.traces
    rewards = {f"reward/{name}": one.value for name, one in trace.rewards.items() if one is not None}
    metrics = {f"metric/{name}": float(value) for name, value in trace.metrics.items() if value is not None}
    return {"reward": trace.reward, **rewards, **metrics}


def _config(asked: dict[str, Any]) -> vf.EnvConfig:
    """The environment's configuration: its own defaults, and for the one agent a harness that runs where this does."""
    name, env_id = asked["taskset"], asked["env"]
    raw: dict[str, Any] = {"id": env_id, "taskset": {"id": name, **asked["config"]}, **asked["env_config"]}
    fields = vf.env_config_type(name, env_id).model_fields
    roles = [role for role, field in fields.items() if isinstance(field.default, vf.AgentConfig)]
    if len(roles) != 1:
        raise RuntimeError(f"the environment has the agents {', '.join(roles)}, and only one can be trained here")
    agent = dict(raw.get(roles[0], {}))
    agent.setdefault("runtime", {"type": "subprocess"})
    if vf.default_harness_id(name) == "bash":  # the taskset brings none of its own
        agent.setdefault("harness", {"id": "practicum_chat"})
    if asked["max_turns"] is not None:
        agent.setdefault("max_turns", asked["max_turns"])
    return vf.resolve_env_config({**raw, roles[0]: agent})


def main() -> None:
    """As the module's docstring says. What a taskset prints goes to stderr."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if sys.argv[1] == "list":
        with answer:
            for task in listed(json.load(sys.stdin)):
                print(json.dumps(task), file=answer)
        return
    file = Path(sys.argv[2]).absolute()
    asked = json.loads(file.read_text(encoding="utf-8"))
    file.unlink()  # it may hold the right answer, and the agent is not here yet
    reward = file.with_name(REWARD)
    try:
        reward.write_text(json.dumps(asyncio.run(played(asked))), encoding="utf-8")
    except Exception as error:
        reward.write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        raise


if __name__ == "__main__":
    main()
