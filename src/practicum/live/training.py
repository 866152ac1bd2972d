"""A training run on tasks that can be repeated and graded: in-house environments, or a black-box harness.

begin, train, register, evaluate, then gate and decide where a decision is wanted; resumable as `steps.py` says. In
training, every step has the rollout service run groups of rollouts (see `groups.py`), and learns from them by the
configured algorithm. Live policy and candidate are compared on held-out tasks, through the same harnesses.

Where not one rollout of a batch could be graded the run is left as it stands, and whoever runs it again has them asked
anew. Tasks that change meanwhile are other submissions.

The weights of a step are a version that nobody decides about; they are dropped once no later step needs them. It must
not know harnesses, sandboxes or wire formats.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from practicum.algorithms.sdpo import Told
from practicum.algorithms.table import algorithm
from practicum.config import Config
from practicum.errors import GuardTripped
from practicum.evals.stats import proportion
from practicum.harnesses.results import RolloutResult
from practicum.live.examine import unasked
from practicum.live.groups import GroupSource, Rollouts, by_task
from practicum.live.prompts import PromptBook
from practicum.live.run_folder import describe
from practicum.live.steps import Outputs, Step, Steps, silent
from practicum.live.syllabus import Syllabus
from practicum.live.workbench import Workbench
from practicum.policies import Registry
from practicum.release.gate import Evidence, checks
from practicum.store import Store
from practicum.trainer.guards import Guards
from practicum.trainer.loop import Phase, Run
from practicum.types.ids import new_id
from practicum.types.local import STUDENT, ScoreRequest
from practicum.types.policies import Decision, PolicyVersion
from practicum.types.training import Datum, Progress

_SOLVED = 0.5
_STEP_NOTE = "weights before step "


class Training(Steps):
    """Runs one training run to its end, or resumes the one that was left unfinished.

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
        chosen = config.train
        self._algorithm = algorithm(chosen.algorithm, chosen.options, teacher_prompt=self._teacher_prompt)
        super().__init__("train", store=store, registry=registry, config=config, workbench=workbench, progress=progress)
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
        describe(self._config, self._config.runs_dir / run_id)
        self._create(run_id)
        return run_id, {}

    def _steps(self) -> Mapping[str, Step]:
        steps: dict[str, Step] = {
            "begin": lambda _id, _outputs: {"live": self._registry.live().version},
            "train": self._train,
            "register": self._register,
            "evaluate": self._evaluate,
        }
        return steps | {"gate": self._gate, "decide": self._decide} if self._config.train.gate else steps

    def _train(self, run_id: str, outputs: Outputs) -> dict[str, Any]:
        live = self._outset(outputs)
        settings, bench = self._config.train, self._bench()
        bench.start_from(live)
        if self._algorithm.distill is not None:
            bench.configure_distill(self._algorithm.distill)
        phase = Phase(
            name="train",
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
        try:
            return self._published(run_id, run.train(progress=self._progress))
        finally:
            bench.stay()

    def _source(self, run_id: str, live: PolicyVersion) -> GroupSource:
        newest = live

        def version(step: int) -> PolicyVersion:
            nonlocal newest
            made = live if step == 0 else self._step_version(run_id, live, step)
            if self._config.train.in_flight and made.version > newest.version:
                self._bench().advance(newest.version, made)
                newest = made
            return made

        return GroupSource(
            self._syllabus,
            self._rollouts,
            self._algorithm,
            version,
            self._scored,
            self._config,
            run_id,
            self._began,
        )

    def _scored(self, rows: Sequence[Datum]) -> list[tuple[float, ...]]:
        self._bench().refresh()
        return self._bench().policy.score(
            [
                ScoreRequest(
                    prompt_ids=row.prompt_ids,
                    completion_ids=row.completion_ids,
                    version=STUDENT,
                    temperature=row.temperature,
                )
                for row in rows
            ]
        )

    def _teacher_prompt(self, told: Told) -> tuple[int, ...] | None:
        """The prompt of a row with a sibling's solution, or what was said of the rollout, in its last user message."""
        call = self._store.get_call(told.row.call_ids[0])
        if call is None:
            return None
        solution = told.solution and self._prompts.text(told.solution.rows[-1].completion_ids)
        ids = self._prompts.told_ids(call, solution=solution or "", feedback=told.feedback)
        fits = len(ids) + len(told.row.completion_ids) <= self._bench().sampler.context_length
        return ids if fits else None

    def _outset(self, outputs: Outputs) -> PolicyVersion:
        """The version that the run set out from. Raises GuardTripped where it is not live any more."""
        known = self._registry.get(outputs["begin"]["live"])
        if known.status != "live":
            raise GuardTripped(
                f"The run set out from version {known.version}, and {self._registry.live().version} is live by now.",
                hint="A comparison would be void; `practicum train` starts anew.",
            )
        return known

    def _step_version(self, run_id: str, live: PolicyVersion, step: int) -> PolicyVersion:
        """The weights of a step as a version, once: a run killed after registering it finds it again."""
        mine = {known.note: known for known in self._registry.list() if known.run_id == run_id}
        if (known := mine.get(f"{_STEP_NOTE}{step}")) is not None:
            return known
        folder = self._config.runs_dir / run_id / "step"
        shutil.rmtree(folder, ignore_errors=True)
        self._bench().trainer.publish(folder)
        made = self._registry.register_candidate(folder, parent=live.version, run_id=run_id, note=f"{_STEP_NOTE}{step}")
        shutil.rmtree(folder, ignore_errors=True)
        # A run that resumes needs the versions that its frontier was admitted under, and the one before them.
        done_with = mine.get(f"{_STEP_NOTE}{step - self._config.train.max_staleness - 2}")
        if done_with is not None and done_with.status == "candidate":
            self._registry.drop(done_with.version)
        return made

    def _drop_step_versions(self) -> None:
        """Of every run that has ended, this one or one killed just before it came to this."""
        going_on = {run.run_id for run in self._store.runs() if run.state == "running"}
        for known in self._registry.list():
            if not known.note.startswith(_STEP_NOTE) or known.run_id in going_on:
                continue
            left = known.status == "dropped" and Path(str(known.adapter_path)).exists()
            if known.status == "candidate" or left:  # a person may have promoted one
                self._registry.drop(known.version)

    def _evaluate(self, run_id: str, outputs: Outputs) -> dict[str, Any]:
        """Rewards of both policies on the held-out tasks."""
        began = time.monotonic()
        live, candidate = self._outset(outputs), self._registry.verify(outputs["register"]["version"])
        source = self._source(run_id, live)
        old, new = (source.run(self._syllabus.heldout, v.version, "gate", heldout=True) for v in (live, candidate))
        before, after = by_task(old), by_task(new)
        both = [task for task in before if task in after]
        return {
            "before": {task: before[task] for task in both},
            "after": {task: after[task] for task in both},
            "figures": {
                "rates": {f"reward of {_SOLVED:g} or more": {"before": _solved(old), "after": _solved(new)}},
                "reward_before": _mean([before[task] for task in both]),
                "reward_after": _mean([after[task] for task in both]),
                "heldout_cases": len(both),
                "evaluate_s": time.monotonic() - began,
            },
        }

    def _gate(self, run_id: str, outputs: Outputs) -> dict[str, Any]:
        began = time.monotonic()
        live, candidate = self._outset(outputs), self._registry.verify(outputs["register"]["version"])
        self._bench().serve(live)
        self._bench().serve(candidate)
        regression_old, regression_new, distance = unasked(
            self._bench().policy, self._prompts, self._config, live, candidate, self._progress
        )
        found = outputs["evaluate"]
        evidence = Evidence(
            target_name="reward on held-out tasks",
            target_new=tuple(found["after"].values()),
            target_old=tuple(found["before"].values()),
            target_clusters=tuple(found["after"]),
            regression_new=regression_new,
            regression_old=regression_old,
            divergence=distance,
            answers=None,
        )
        return {
            "checks": [asdict(line) for line in checks(evidence, self._config.gate)],
            "figures": found["figures"]
            | {
                "regression_before": regression_old.accuracy,
                "regression_after": regression_new.accuracy,
                "kl_general": distance.mean,
                "gate_s": found["figures"]["evaluate_s"] + time.monotonic() - began,
            },
        }


def _solved(results: Sequence[RolloutResult]) -> dict[str, Any]:
    known = [one.reward for one in results if one.reward is not None]
    return asdict(proportion(sum(reward >= _SOLVED for reward in known), len(known)))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
