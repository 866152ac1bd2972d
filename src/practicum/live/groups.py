"""The rows of a step: groups of rollouts of tasks, under the weights of that step or bounded older ones.

Groups are trained in the order in which they were admitted, and a step's groups are admitted `max_staleness` steps
ahead of it. So staleness is bounded by construction: nothing is thrown away for its age, a slow rollout holds up only
its own step, and what is trained never favours what is quick. With `max_staleness` 0 the whole batch is sampled under
exactly the weights that it changes.

Rollouts are submitted under keys made of run, step and task, so a run that was killed finds what it had already asked
for: the trained frontier is where it goes on, and what was in flight behind it is not lost. It must not know harnesses,
sandboxes or wire formats.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from practicum.algorithms.group import Graded
from practicum.algorithms.order import epoch_order, weighted_picks
from practicum.algorithms.table import Algorithm
from practicum.config import Config
from practicum.environments.tasks import NAME as ENVIRONMENT
from practicum.errors import HarnessError
from practicum.evals.stats import mean_interval
from practicum.harnesses.results import RolloutResult
from practicum.live.syllabus import Syllabus
from practicum.types.policies import PolicyVersion
from practicum.types.rollouts import Task
from practicum.types.training import Batch, Datum

_MOST_TURNS = 100  # of asking anew for what nobody could grade
# Pools by pass rate: up to the first bound a task is hard, up to the second normal, above it easy; and how likely each
# is to be drawn beside a normal one.
_HARD, _NORMAL = 0.25, 0.75
_HARD_WEIGHT, _EASY_WEIGHT = 0.2, 0.2


class Rollouts(Protocol):
    """Runs groups of rollouts and waits for them."""

    def check(self, tasks: Sequence[Task]) -> None:
        """Raises ConfigError naming the first task that cannot be run here, and why."""

    def submit(self, tasks: Mapping[str, Task]) -> None:
        """Queue groups under their submission keys and return; a key seen before changes nothing."""

    def run(self, tasks: Mapping[str, Task]) -> dict[str, list[RolloutResult]]:
        """Each task's results under its submission key; a key seen before gives what it gave then."""


class GroupSource:
    """Satisfies `trainer.loop.RowSource`.

    Args:
        syllabus: the tasks.
        rollouts: runs them.
        algorithm: makes rows of what they came to.
        version: publishes the weights of a step, makes them servable and gives the version.
        config: sections `train` and `learn`, and the name of the model.
        score: logprobs [T] of rows under the trainer's weights as they stand, for an algorithm that asks for them.
        run_id: makes the submission keys.
        since: UTC seconds; rollouts that ended before, with none of their batch graded, are asked for anew.
    """

    def __init__(
        self,
        syllabus: Syllabus,
        rollouts: Rollouts,
        algorithm: Algorithm,
        version: Callable[[int], PolicyVersion],
        score: Callable[[Sequence[Datum]], Sequence[Sequence[float]]],
        config: Config,
        run_id: str,
        since: float,
    ) -> None:
        self._syllabus = syllabus
        self._rollouts = rollouts
        self._algorithm = algorithm
        self._version = version
        self._score = score
        self._config = config
        self._settings = config.train
        self._run_id = run_id
        self._since = since
        self._rates: dict[int, dict[str, float]] = {}  # mean reward by task, of each trained step
        self._steps_of: dict[int, int] = {}  # by version: the step whose weights it holds

    # -- what a step trains --------------------------------------------------------------------------------------

    def batch(self, step: int) -> Batch:
        """Run the step's groups, admit those of later steps, and make one batch."""
        ahead = self._settings.max_staleness
        for known in range(max(0, step - ahead), step + 1):  # in order: the newest becomes what is sampled from
            version = self._version(known)
            self._steps_of[version.version] = known
        for later in range(step + 1, min(step + ahead, self._settings.steps - 1) + 1):
            self._rollouts.submit(self._jobs(self._plan(later), self._admitted_under(later), f"step {later}", 0))
        results = self.run(self._plan(step), self._admitted_under(step), f"step {step}")
        if self._algorithm.resamples:
            results += self._filled(step, results, version.version)
        made = self._with_proximal(self._algorithm.batch([graded(one) for one in results], on_policy=ahead == 0))
        self._rates[step] = by_task(results)
        facts = dict(made.facts) | self._staleness(results, step)
        if self._settings.eval_every and step % self._settings.eval_every == 0:
            began = time.monotonic()
            facts |= self.evaluated(version.version, f"eval {step}")
            facts["eval_s"] = time.monotonic() - began
        return replace(made, facts=facts)

    def state(self) -> dict[str, Any]:
        """What later steps need to know of earlier ones, as JSON."""
        return {"rates": {str(step): rates for step, rates in self._rates.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the state that a checkpoint has."""
        self._rates = {int(step): dict(rates) for step, rates in state["rates"].items()}

    def evaluated(self, version: int, label: str) -> dict[str, float]:
        """Mean reward on the held-out tasks under a version, with its 95% interval over tasks."""
        judged = self.run(self._syllabus.heldout, version, label, heldout=True)
        found = mean_interval(list(by_task(judged).values()))
        return {
            "heldout_reward": found.estimate,
            "heldout_low": found.low,
            "heldout_high": found.high,
            "heldout_tasks": float(found.n),
        }

    def _filled(self, step: int, results: Sequence[RolloutResult], version: int) -> list[RolloutResult]:
        """Rollouts of further tasks in place of groups without a signal: so many as are missing, in bounded rounds."""
        more: list[RolloutResult] = []
        done = {one.rollout.task_id for one in results}
        for turn in range(self._settings.resample_rounds):
            missing = self._settings.groups - len(self._algorithm.signal([graded(one) for one in [*results, *more]]))
            left = [task for task in self._syllabus.train if task.task_id not in done]
            if missing <= 0 or not left:
                break
            order = weighted_picks([1.0] * len(left), missing, step, self._config.learn.seed + turn + 1)
            picked = [left[index] for index in order]
            done |= {task.task_id for task in picked}
            more += self.run(picked, version, f"step {step}, filled up {turn + 1}")
        return more

    def _with_proximal(self, batch: Batch) -> Batch:
        if not self._algorithm.needs_proximal:
            return batch
        streams = [
            replace(
                stream,
                rows=[
                    replace(row, old_logprobs=tuple(values))
                    for row, values in zip(stream.rows, self._score(stream.rows), strict=True)
                ],
            )
            for stream in batch.streams
        ]
        return replace(batch, streams=streams)

    def _plan(self, step: int) -> list[Task]:
        """The step's tasks: in shuffled epochs, or drawn by what is known of them when the step is admitted."""
        tasks, wanted, seed = self._syllabus.train, self._settings.groups, self._config.learn.seed
        if self._settings.curriculum == "none":
            return [tasks[index] for index in epoch_order(len(tasks), wanted, step, seed)]
        known: dict[str, float] = {}
        for earlier in sorted(self._rates):
            if earlier < step - self._settings.max_staleness:
                known |= self._rates[earlier]
        weights = [_pool_weight(known.get(task.task_id)) for task in tasks]
        return [tasks[index] for index in weighted_picks(weights, wanted, step, seed)]

    def _admitted_under(self, step: int) -> int:
        """The version under which a step's groups begin: that of the step at which they are admitted."""
        return self._version(max(0, step - self._settings.max_staleness)).version

    def _staleness(self, results: Sequence[RolloutResult], step: int) -> dict[str, float]:
        """Mean and largest number of steps between the weights that sampled a token and those it trains."""
        ages: Counter[int] = Counter()
        for one in results:
            for row in one.rows:
                ages.update(step - self._steps_of.get(v, step) for v in row.versions if v is not None)
        if not self._settings.max_staleness or not ages:
            return {}
        return {"staleness": sum(age * n for age, n in ages.items()) / ages.total(), "staleness_max": float(max(ages))}

    # -- running tasks -------------------------------------------------------------------------------------------

    def run(self, tasks: Sequence[Task], version: int, label: str, *, heldout: bool = False) -> list[RolloutResult]:
        """Results of tasks under a version, in the tasks' order. Raises HarnessError where none of them has a reward.

        Such a batch has ended for good, but its cause may be mended by now: one that is found from before `since` is
        asked for once more.
        """
        results: list[RolloutResult] = []
        for turn in range(_MOST_TURNS):
            jobs = self._jobs(tasks, version, label, turn, heldout=heldout)
            found = self._rollouts.run(jobs)
            results = [one for key in jobs for one in found[key]]
            if any(one.reward is not None for one in results):
                return results
            if any((one.rollout.ended_at or self._since) >= self._since for one in results):
                break
        raise _ungraded(results, label)

    def _jobs(
        self, tasks: Sequence[Task], version: int, label: str, turn: int, *, heldout: bool = False
    ) -> dict[str, Task]:
        wanted = [self._asked(task, version, label, heldout=heldout) for task in tasks]
        return {f"{self._run_id}:{label}:v{version}:{_named(task)}:{turn}": task for task in wanted}

    def _asked(self, task: Task, version: int, label: str, *, heldout: bool) -> Task:
        settings = self._settings
        samples = settings.heldout_samples if heldout else settings.samples
        spare = 0 if heldout else settings.spare_samples
        options = dict(task.options)
        if task.harness == ENVIRONMENT:  # the one whose sampling is ours to choose
            changed = settings.heldout_sampling if heldout else settings.sampling
            options["sampling"] = {**options.get("sampling", {}), **changed}
            options["seed"] = _seed(self._config.learn.seed, label)
        return replace(
            task,
            options=options,
            num_samples=samples + spare,
            stop_after=samples if spare else task.stop_after,
            model=f"{self._config.gateway.model_name}@{version}",
        )


def by_task(results: Sequence[RolloutResult]) -> dict[str, float]:
    """Mean reward of each task that has one."""
    rewards: dict[str, list[float]] = {}
    for one in results:
        if one.reward is not None:
            rewards.setdefault(one.rollout.task_id, []).append(one.reward)
    return {task: math.fsum(values) / len(values) for task, values in rewards.items()}


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
        feedback="\n".join(outcome.reason for outcome in rollout.outcomes if outcome.reason),
    )


def _pool_weight(rate: float | None) -> float:
    if rate is None:
        return 1.0
    return _HARD_WEIGHT if rate <= _HARD else 1.0 if rate <= _NORMAL else _EASY_WEIGHT


def _seed(seed: int, label: str) -> int:
    """48 bits; not Python's own hash, which differs from process to process."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{label}".encode()).digest()[:6], "big")


def _named(task: Task) -> str:
    """The id of a task and a digest of all of it: a task that was changed is another one."""
    whole = json.dumps(asdict(task), sort_keys=True, default=str)
    return f"{task.task_id}:{hashlib.sha256(whole.encode()).hexdigest()[:12]}"


def _ungraded(results: Sequence[RolloutResult], label: str) -> HarnessError:
    reasons = Counter(one.excluded or "no reason is on record" for one in results)
    ((reason, times),) = reasons.most_common(1)
    return HarnessError(
        f"None of the {len(results)} rollouts of {label} could be graded; {times} of them: {reason.rstrip('.')}.",
        hint="Mend that and run `practicum train` again: the run goes on where it stopped.",
        code="no_rollout_graded",
    )
