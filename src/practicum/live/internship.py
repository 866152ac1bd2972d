"""An internship: a run that learns from what a black-box harness does on tasks that can be repeated and graded.

begin, train, register, gate, decide; resumable as `steps.py` says. In training, every step has the rollout service run
groups of rollouts under exactly the weights of that step, published as a version of their own, and learns from them by
GRPO. The gate compares live policy and candidate on held-out tasks, through the same harness.

A step's rollouts are submitted under keys made of run, step and task, so a run that was killed finds what it had
already asked for. It must not know harnesses, sandboxes or wire formats.
"""

from __future__ import annotations

import importlib.util
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from practicum.algorithms import grpo
from practicum.algorithms.order import epoch_order
from practicum.config import Config
from practicum.errors import ConfigError
from practicum.evals.stats import proportion
from practicum.harnesses.results import RolloutResult
from practicum.live.examine import unasked
from practicum.live.prompts import PromptBook
from practicum.live.steps import Outputs, Step, Steps, silent
from practicum.live.workbench import Workbench
from practicum.policies import Registry
from practicum.release.gate import Evidence, checks
from practicum.store import Store
from practicum.trainer.guards import Guards
from practicum.trainer.loop import Phase, Run
from practicum.types.ids import new_id
from practicum.types.policies import PolicyVersion
from practicum.types.rollouts import Task
from practicum.types.training import Batch, Progress

_SOLVED = 0.5


class Rollouts(Protocol):
    """Runs groups of rollouts and waits for them."""

    def run(self, tasks: Mapping[str, Task]) -> dict[str, list[RolloutResult]]:
        """Each task's results under its submission key; a key seen before gives what it gave then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Syllabus:
    """Tasks to learn from, and tasks that only judge."""

    train: tuple[Task, ...]
    heldout: tuple[Task, ...]


def load_syllabus(path: Path) -> Syllabus:
    """Tables `TRAIN` and `HELDOUT` of tasks in a Python file. Raises ConfigError naming what is wrong with it."""
    if not path.is_file():
        raise ConfigError(f"intern.tasks names {path}, which is not a file.", hint="Give a path to a Python file.")
    spec = importlib.util.spec_from_file_location(f"practicum_tasks_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be loaded as Python.", hint="Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = []
    for name in ("TRAIN", "HELDOUT"):
        tasks = getattr(module, name, None)
        if not isinstance(tasks, Sequence) or not tasks or not all(isinstance(task, Task) for task in tasks):
            raise ConfigError(f"{path} has no list {name} of practicum.types.rollouts.Task.")
        found.append(tuple(tasks))
    train, heldout = found
    twice = {task.task_id for task in train} & {task.task_id for task in heldout}
    if twice or len({task.task_id for task in train}) < len(train):
        raise ConfigError(f"{path}: every task needs an id of its own; {sorted(twice)[:3] or 'TRAIN'} repeats some.")
    return Syllabus(train=train, heldout=heldout)


class GroupSource:
    """The rows of a step: groups of rollouts under the trainer's weights as they stand.

    Args:
        syllabus: the tasks.
        rollouts: runs them.
        version: publishes the weights of a step and gives the version.
        config: sections `intern` and `learn`, and the name of the model.
        run_id: makes the submission keys.
    """

    def __init__(
        self,
        syllabus: Syllabus,
        rollouts: Rollouts,
        version: Callable[[int], PolicyVersion],
        config: Config,
        run_id: str,
    ) -> None:
        self._syllabus = syllabus
        self._rollouts = rollouts
        self._version = version
        self._config = config
        self._run_id = run_id

    def batch(self, step: int) -> Batch:
        """Run the step's groups and make one batch of them."""
        settings = self._config.intern
        version = self._version(step).version
        picks = epoch_order(len(self._syllabus.train), settings.groups, step, self._config.learn.seed)
        results = self.run([self._syllabus.train[index] for index in picks], version, settings.samples, f"step{step}")
        made = grpo.batch([graded(one) for one in results], on_policy=True)
        facts = dict(made.facts)
        if settings.eval_every and step % settings.eval_every == 0:
            judged = self.run(self._syllabus.heldout, version, 1, f"eval{step}")
            facts.update({"heldout_reward": _mean(list(known.values()))} if (known := _by_task(judged)) else {})
        return replace(made, facts=facts)

    def run(self, tasks: Sequence[Task], version: int, samples: int, label: str) -> list[RolloutResult]:
        """Results of tasks under a version, in the tasks' order."""
        model = f"{self._config.gateway.model_name}@{version}"
        jobs = {
            f"{self._run_id}:{label}:v{version}:{task.task_id}": replace(task, num_samples=samples, model=model)
            for task in tasks
        }
        found = self._rollouts.run(jobs)
        return [one for key in jobs for one in found[key]]


def graded(result: RolloutResult) -> grpo.Graded:
    """A rollout as the algorithm takes it; one that takes no part has neither reward nor rows, and its cause."""
    rollout = result.rollout
    out = result.excluded is not None
    return grpo.Graded(
        rollout_id=rollout.rollout_id,
        group=(rollout.task_id, rollout.role),
        reward=None if out else result.reward,
        rows=() if out else result.rows,
        cause=(result.excluded or "").partition(":")[0],
    )


class Internship(Steps):
    """Runs one internship to its decision, or resumes the one that was left unfinished.

    Args:
        store: records of every step.
        registry: policy versions and the live pointer.
        config: resolved configuration, stored with the run.
        prompts: renders the regression suite.
        syllabus: the tasks.
        rollouts: runs them.
        workbench: the engine that trains; its sampler serves the rollouts.
        progress: told (stage, done, total, figures).
    """

    def __init__(
        self,
        *,
        store: Store,
        registry: Registry,
        config: Config,
        prompts: PromptBook,
        syllabus: Syllabus,
        rollouts: Rollouts,
        workbench: Callable[[], Workbench],
        progress: Progress = silent,
    ) -> None:
        super().__init__(
            "intern", store=store, registry=registry, config=config, workbench=workbench, progress=progress
        )
        self._prompts = prompts
        self._syllabus = syllabus
        self._rollouts = rollouts

    def _start(self) -> tuple[str, Outputs]:
        run_id = new_id("run")
        self._create(run_id)
        return run_id, {}

    def _steps(self) -> Mapping[str, Step]:
        return {
            "begin": lambda _id, _outputs: {"live": self._registry.live().version},
            "train": self._train,
            "register": self._register,
            "gate": self._gate,
            "decide": self._decide,
        }

    def _train(self, run_id: str, outputs: Outputs) -> dict[str, Any]:
        live = self._registry.get(outputs["begin"]["live"])
        settings, bench = self._config.intern, self._bench()
        bench.start_from(live)
        phase = Phase(
            name="internship",
            source=self._source(run_id, live),
            steps=settings.steps,
            learning_rate=settings.learning_rate,
        )
        run = Run(
            bench.trainer,
            [phase],
            self._config.runs_dir / run_id / "training",
            guards=Guards(max_kl=self._config.learn.max_kl, max_idle_steps=settings.max_idle_steps),
            checkpoint_every=1,
        )
        return self._published(run_id, run.train(progress=self._progress))

    def _source(self, run_id: str, live: PolicyVersion) -> GroupSource:
        def version(step: int) -> PolicyVersion:
            return live if step == 0 else self._step_version(run_id, live, step)

        return GroupSource(self._syllabus, self._rollouts, version, self._config, run_id)

    def _step_version(self, run_id: str, live: PolicyVersion, step: int) -> PolicyVersion:
        """The weights of a step as a version, once: a run killed after registering it finds it again."""
        note = f"weights before step {step}"
        for known in self._registry.list():
            if known.run_id == run_id and known.note == note:
                return known
        folder = self._config.runs_dir / run_id / "step"
        shutil.rmtree(folder, ignore_errors=True)
        self._bench().trainer.publish(folder)
        return self._registry.register_candidate(folder, parent=live.version, run_id=run_id, note=note)

    def _gate(self, run_id: str, outputs: Outputs) -> dict[str, Any]:
        began = time.monotonic()
        live = self._registry.get(outputs["begin"]["live"])
        candidate = self._registry.verify(outputs["register"]["version"])
        source = self._source(run_id, live)
        samples = self._config.intern.heldout_samples
        old, new = (source.run(self._syllabus.heldout, v.version, samples, "gate") for v in (live, candidate))
        before, after = _by_task(old), _by_task(new)
        both = [task for task in before if task in after]
        self._bench().serve(live)
        self._bench().serve(candidate)
        regression_old, regression_new, distance = unasked(
            self._bench().policy, self._prompts, self._config, live, candidate, self._progress
        )
        evidence = Evidence(
            target_name="reward on held-out tasks",
            target_new=tuple(after[task] for task in both),
            target_old=tuple(before[task] for task in both),
            target_clusters=tuple(both),
            regression_new=regression_new,
            regression_old=regression_old,
            divergence=distance,
            answers=None,
        )
        return {
            "checks": [asdict(line) for line in checks(evidence, self._config.gate)],
            "figures": {
                "rates": {"all": {"before": _solved(old), "after": _solved(new)}},
                "reward_before": _mean(evidence.target_old),
                "reward_after": _mean(evidence.target_new),
                "regression_before": regression_old.accuracy,
                "regression_after": regression_new.accuracy,
                "kl_general": distance.mean,
                "heldout_cases": len(both),
                "gate_s": time.monotonic() - began,
            },
        }


def _by_task(results: Sequence[RolloutResult]) -> dict[str, float]:
    """Mean reward of each task that has one."""
    rewards: dict[str, list[float]] = {}
    for one in results:
        if one.reward is not None:
            rewards.setdefault(one.rollout.task_id, []).append(one.reward)
    return {task: _mean(values) for task, values in rewards.items()}


def _solved(results: Sequence[RolloutResult]) -> dict[str, Any]:
    known = [one.reward for one in results if one.reward is not None]
    return asdict(proportion(sum(reward >= _SOLVED for reward in known), len(known)))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
