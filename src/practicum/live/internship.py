"""An internship: a run that learns from what a black-box harness does on tasks that can be repeated and graded.

begin, train, register, gate, decide; resumable as `steps.py` says. In training, every step has the rollout service run
groups of rollouts under exactly the weights of that step, published as a version of their own, and learns from them by
DPPO. The gate compares live policy and candidate on held-out tasks, through the same harness.

A step's rollouts are submitted under keys made of run, step and task, so a run that was killed finds what it had
already asked for. Where not one of them could be graded the run is left as it stands, and whoever runs it again has
them asked anew. Tasks that change meanwhile are other submissions.

The version of a step is a candidate that nobody decides about; its weights are dropped once the run has ended. It must
not know harnesses, sandboxes or wire formats.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from practicum.algorithms.group import Graded
from practicum.algorithms.order import epoch_order
from practicum.algorithms.table import algorithm
from practicum.config import Config
from practicum.errors import ConfigError, GuardTripped, HarnessError
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
from practicum.types.policies import Decision, PolicyVersion
from practicum.types.rollouts import Task
from practicum.types.training import Batch, Progress

_SOLVED = 0.5
_STEP_NOTE = "weights before step "
_MOST_TURNS = 100  # of asking anew for what nobody could grade


class Rollouts(Protocol):
    """Runs groups of rollouts and waits for them."""

    def check(self, tasks: Sequence[Task]) -> None:
        """Raises ConfigError naming the first task that cannot be run here, and why."""

    def run(self, tasks: Mapping[str, Task]) -> dict[str, list[RolloutResult]]:
        """Each task's results under its submission key; a key seen before gives what it gave then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Syllabus:
    """Tasks to learn from, and tasks that only judge."""

    train: tuple[Task, ...]
    heldout: tuple[Task, ...]


def load_syllabus(path: Path) -> Syllabus:
    """Lists `TRAIN` and `HELDOUT` of tasks in a Python file. Raises ConfigError naming what is wrong with it."""
    if not path.is_file():
        raise ConfigError(f"intern.tasks names {path}, which is not a file.", hint="Give a path to a Python file.")
    spec = importlib.util.spec_from_file_location(f"practicum_tasks_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be loaded as Python.", hint="Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses in the file look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the file is the team's own code
        raise ConfigError(f"{path} cannot be loaded: {_where(error, path)}.", hint="Mend it and run again.") from error
    train, heldout = (_tasks(getattr(module, name, None), name, path) for name in ("TRAIN", "HELDOUT"))
    counted = Counter(task.task_id for task in (*train, *heldout))
    if twice := [task_id for task_id, times in counted.items() if times > 1]:
        shown = ", ".join(map(repr, twice[:3]))
        raise ConfigError(
            f"{path} gives {len(twice)} task ids more than once: {shown}.",
            hint="Give every task of TRAIN and HELDOUT an id of its own.",
        )
    return Syllabus(train=train, heldout=heldout)


def _tasks(found: object, name: str, path: Path) -> tuple[Task, ...]:
    if not isinstance(found, list | tuple) or not found:
        said = "is empty" if found in ([], ()) else "is missing" if found is None else f"is a {type(found).__name__}"
        raise ConfigError(f"{path}: {name} {said}.", hint=f"Give a list {name} of practicum.types.rollouts.Task.")
    for place, task in enumerate(found):
        if not isinstance(task, Task):
            raise ConfigError(
                f"{path}: {name}[{place}] is a {type(task).__name__}.", hint="Give practicum.types.rollouts.Task."
            )
        if not task.graders:
            raise ConfigError(
                f"{path}: task {task.task_id!r} has no grader, so nothing can be learned from it.",
                hint="Give it `graders`; the first one's first outcome is the reward.",
            )
    return tuple(found)


def _where(error: BaseException, path: Path) -> str:
    """What was raised, and the last line of the file that it passed through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{type(error).__name__}: {str(error).rstrip('.')}" + (f", in line {lines[-1]}" if lines else "")


class GroupSource:
    """The rows of a step: groups of rollouts under the trainer's weights as they stand.

    Args:
        syllabus: the tasks.
        rollouts: runs them.
        version: publishes the weights of a step and gives the version.
        config: sections `intern` and `learn`, and the name of the model.
        run_id: makes the submission keys.
        since: UTC seconds; rollouts that ended before, with none of their batch graded, are asked for anew.
    """

    def __init__(
        self,
        syllabus: Syllabus,
        rollouts: Rollouts,
        version: Callable[[int], PolicyVersion],
        config: Config,
        run_id: str,
        since: float,
    ) -> None:
        self._syllabus = syllabus
        self._rollouts = rollouts
        self._version = version
        self._config = config
        self._run_id = run_id
        self._since = since

    def batch(self, step: int) -> Batch:
        """Run the step's groups and make one batch of them."""
        settings = self._config.intern
        version = self._version(step).version
        picks = epoch_order(len(self._syllabus.train), settings.groups, step, self._config.learn.seed)
        results = self.run([self._syllabus.train[index] for index in picks], version, settings.samples, f"step {step}")
        made = algorithm("dppo").batch([graded(one) for one in results], on_policy=True)
        facts = dict(made.facts)
        if settings.eval_every and step % settings.eval_every == 0:
            judged = self.run(self._syllabus.heldout, version, 1, f"eval {step}")
            facts.update({"heldout_reward": _mean(list(known.values()))} if (known := _by_task(judged)) else {})
        return replace(made, facts=facts)

    def run(self, tasks: Sequence[Task], version: int, samples: int, label: str) -> list[RolloutResult]:
        """Results of tasks under a version, in the tasks' order. Raises HarnessError where none of them has a reward.

        Such a batch has ended for good, but its cause may be mended by now: one that is found from before `since` is
        asked for once more.
        """
        model = f"{self._config.gateway.model_name}@{version}"
        wanted = [replace(task, num_samples=samples, model=model) for task in tasks]
        results: list[RolloutResult] = []
        for turn in range(_MOST_TURNS):
            jobs = {f"{self._run_id}:{label}:v{version}:{_named(task)}:{turn}": task for task in wanted}
            found = self._rollouts.run(jobs)
            results = [one for key in jobs for one in found[key]]
            if any(one.reward is not None for one in results):
                return results
            if any((one.rollout.ended_at or self._since) >= self._since for one in results):
                break
        raise _ungraded(results, label)


def _named(task: Task) -> str:
    """The id of a task and a digest of all of it: a task that was changed is another one."""
    whole = json.dumps(asdict(task), sort_keys=True, default=str)
    return f"{task.task_id}:{hashlib.sha256(whole.encode()).hexdigest()[:12]}"


def _ungraded(results: Sequence[RolloutResult], label: str) -> HarnessError:
    reasons = Counter(one.excluded or "no reason is on record" for one in results)
    ((reason, times),) = reasons.most_common(1)
    return HarnessError(
        f"None of the {len(results)} rollouts of {label} could be graded; {times} of them: {reason.rstrip('.')}.",
        hint="Mend that and run `practicum intern` again: the run goes on where it stopped.",
        code="no_rollout_graded",
    )


def graded(result: RolloutResult) -> Graded:
    """A rollout as the algorithm takes it; one that takes no part has neither reward nor rows, and its cause."""
    rollout = result.rollout
    out = result.excluded is not None
    return Graded(
        rollout_id=rollout.rollout_id,
        group=(rollout.task_id, rollout.role),
        reward=None if out else result.reward,
        rows=() if out else result.rows,
        cause=(result.excluded or "").partition(":")[0],
        truncated=result.truncated,
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
        self._began = time.time()

    def run(self) -> tuple[str, Decision | None]:
        """As `Steps.run`. Raises ConfigError for a task that cannot be run; HarnessError where none could be graded."""
        self._rollouts.check([*self._syllabus.train, *self._syllabus.heldout])
        ended = super().run()
        self._drop_step_versions()
        return ended

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
        live = self._outset(outputs)
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

        return GroupSource(self._syllabus, self._rollouts, version, self._config, run_id, self._began)

    def _outset(self, outputs: Outputs) -> PolicyVersion:
        """The version that the run set out from. Raises GuardTripped where it is not live any more."""
        known = self._registry.get(outputs["begin"]["live"])
        if known.status != "live":
            raise GuardTripped(
                f"The run set out from version {known.version}, and {self._registry.live().version} is live by now.",
                hint="A comparison would be void; `practicum intern` starts anew.",
            )
        return known

    def _step_version(self, run_id: str, live: PolicyVersion, step: int) -> PolicyVersion:
        """The weights of a step as a version, once: a run killed after registering it finds it again."""
        note = f"{_STEP_NOTE}{step}"
        for known in self._registry.list():
            if known.run_id == run_id and known.note == note:
                return known
        folder = self._config.runs_dir / run_id / "step"
        shutil.rmtree(folder, ignore_errors=True)
        self._bench().trainer.publish(folder)
        made = self._registry.register_candidate(folder, parent=live.version, run_id=run_id, note=note)
        shutil.rmtree(folder, ignore_errors=True)
        return made

    def _drop_step_versions(self) -> None:
        """Of every internship that has ended, this one or one killed just before it came to this."""
        going_on = {run.run_id for run in self._store.runs() if run.state == "running"}
        for known in self._registry.list():
            if not known.note.startswith(_STEP_NOTE) or known.run_id in going_on:
                continue
            left = known.status == "dropped" and Path(str(known.adapter_path)).exists()
            if known.status == "candidate" or left:  # a person may have promoted one
                self._registry.drop(known.version)

    def _gate(self, run_id: str, outputs: Outputs) -> dict[str, Any]:
        began = time.monotonic()
        live = self._outset(outputs)
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
                "rates": {f"reward of {_SOLVED:g} or more": {"before": _solved(old), "after": _solved(new)}},
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
