"""A run as named steps, each with its output on record: what `learn` and `train` have in common.

A run that was killed goes on at the first step without a record. Steps read only the records before them and append
their own, so doing one twice gives the same record, and only `decide` can move the live pointer, in one transaction
with its decision.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from practicum.config import Config
from practicum.errors import Conflict, GuardTripped
from practicum.live.lease import Held
from practicum.live.records import checks_from, decision_from, run_config
from practicum.live.workbench import Workbench
from practicum.policies import Registry
from practicum.release.gate import decide
from practicum.store import Store
from practicum.trainer.loop import Outcome
from practicum.types.policies import Decision
from practicum.types.training import Progress

Outputs = dict[str, dict[str, Any]]
Step = Callable[[str, Outputs], dict[str, Any]]
RunKind = Literal["learn", "train"]


def silent(stage: str, done: int, total: int, figures: Mapping[str, Any]) -> None:
    """No progress wanted."""


class Steps:
    """Runs the steps of one run to its decision, or resumes the one of its kind that was left unfinished.

    Args:
        kind: a run is resumed by its own kind only.
        store: records of every step.
        registry: policy versions and the live pointer.
        config: resolved configuration, stored with the run.
        workbench: makes the engine when the first step needs it.
        progress: told (stage, done, total, figures).
    """

    def __init__(
        self,
        kind: RunKind,
        *,
        store: Store,
        registry: Registry,
        config: Config,
        workbench: Callable[[], Workbench],
        progress: Progress = silent,
    ) -> None:
        self._kind = kind
        self._store = store
        self._registry = registry
        self._config = config
        self._make_workbench = workbench
        self._workbench: Workbench | None = None
        self._progress = progress

    def run(self) -> tuple[str, Decision | None]:
        """Resume or start a run; returns its id and the decision, or None where training stopped itself or no
        decision was wanted.

        Raises: UsageError where there is nothing to learn from; Conflict where another learner holds the lease.
        """
        with Held(self._store, "learner") as self._fence:
            run_id, outputs = self._unfinished() or self._start()
            try:
                return run_id, self._advance(run_id, outputs)
            except GuardTripped as stop:
                self._record(run_id, "stopped", {"reason": str(stop), "log": list(stop.log)})
                self._store.set_run_state(run_id, "stopped", fence=self._fence).result()
                return run_id, None

    # -- what a kind of run says of itself -----------------------------------------------------------------------

    def _start(self) -> tuple[str, Outputs]:
        """Create a run; its id, and the outputs of the steps already done."""
        raise NotImplementedError

    def _steps(self) -> Mapping[str, Step]:
        """The steps in order; `collect` or `begin` tells which version is `live`."""
        raise NotImplementedError

    # -- common --------------------------------------------------------------------------------------------------

    def _create(self, run_id: str) -> None:
        self._store.create_run(run_id, run_config(self._config, self._kind), "running").result()

    def _unfinished(self) -> tuple[str, Outputs] | None:
        for run in self._store.runs():
            if run.state == "running" and run.config.get("kind", "learn") == self._kind:
                return run.run_id, {step.step: step.output for step in self._store.run_steps(run.run_id)}
        return None

    def _advance(self, run_id: str, outputs: Outputs) -> Decision | None:
        for name, step in self._steps().items():
            if name not in outputs:
                outputs[name] = step(run_id, outputs)
                self._record(run_id, name, outputs[name])
            self._progress(name, 1, 1, {})
        self._store.set_run_state(run_id, "finished", fence=self._fence).result()
        return decision_from(outputs["decide"]["decision"]) if "decide" in outputs else None

    def _record(self, run_id: str, step: str, output: dict[str, Any]) -> None:
        self._store.finish_step(run_id, step, output, fence=self._fence).result()

    def _published(self, run_id: str, outcome: Outcome) -> dict[str, Any]:
        """What a training step leaves: the adapter, its digest and the figures of all steps."""
        adapter = self._config.runs_dir / run_id / "adapter"
        shutil.rmtree(adapter, ignore_errors=True)
        digest = self._bench().trainer.publish(adapter)
        return {"adapter": str(adapter), "digest": digest, **asdict(outcome)}

    def _register(self, run_id: str, outputs: Outputs) -> dict[str, Any]:
        """The candidate of this run, once: a run killed after registering finds it again."""
        for known in self._registry.list():
            if known.run_id == run_id and not known.note:
                return {"version": known.version, "digest": known.digest}
        made = self._registry.register_candidate(
            self._config.runs_dir / run_id / "adapter", parent=_live(outputs), run_id=run_id
        )
        return {"version": made.version, "digest": made.digest}

    def _decide(self, run_id: str, outputs: Outputs) -> dict[str, Any]:
        """Apply the verdict. If the pointer moved meanwhile, the comparison is void: the candidate is refused."""
        version, live = outputs["register"]["version"], _live(outputs)
        applied = [d for d in self._registry.decisions() if d.run_id == run_id]
        if applied:
            return {"decision": asdict(applied[0])}
        lines, figures = checks_from(outputs["gate"]["checks"]), outputs["gate"]["figures"]
        known = {"version": version, "live": live, "actor": "gate", "run_id": run_id, "figures": figures}
        decision = decide(lines, **known)
        try:
            self._registry.apply_decision(decision)
        except Conflict as moved:
            decision = decide(lines, **known, refused_because=f"the comparison is void: {moved.message}")
            self._registry.apply_decision(decision)
        return {"decision": asdict(decision)}

    def _bench(self) -> Workbench:
        if self._workbench is None:
            self._workbench = self._make_workbench()
        return self._workbench


def _live(outputs: Outputs) -> int:
    begun: Sequence[str] = [name for name in ("collect", "begin") if name in outputs]
    return int(outputs[begun[0]]["live"])
