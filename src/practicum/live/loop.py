"""One learning run: collect, curate, train, register, gate, decide. Each step's output is a record in the store.

A run that was killed goes on at the first step without a record; inside training, at the newest checkpoint. Steps read
only the records before them and append their own, so doing one twice gives the same record, and only `decide` can move
the live pointer, in one transaction with its decision.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from practicum.config import Config
from practicum.curation import curate
from practicum.errors import Conflict, GuardTripped
from practicum.evals.graders import Grader
from practicum.live.examine import Examiner
from practicum.live.learner import Learner
from practicum.live.lease import Held
from practicum.live.prompts import PromptBook
from practicum.live.records import checks_from, decision_from, manifest_from, run_config
from practicum.live.workbench import Workbench
from practicum.policies import Registry
from practicum.release.gate import decide
from practicum.store import Store
from practicum.types.ids import new_id
from practicum.types.policies import Decision
from practicum.types.training import Progress

STEPS = ("collect", "curate", "train", "register", "gate", "decide")

Outputs = dict[str, dict[str, Any]]


def _silent(stage: str, done: int, total: int, figures: Mapping[str, Any]) -> None:
    """No progress wanted."""


class Loop:
    """Runs one learning run to its decision, or resumes the one that was left unfinished.

    Args:
        store: records of every step.
        registry: policy versions and the live pointer.
        config: resolved configuration, stored with the run.
        prompts: turns calls into prompts, with and without hindsight.
        graders: the team's checks of held-out answers; may be empty.
        workbench: makes the engine when the first step needs it (training or the gate).
        progress: told (stage, done, total, figures).
    """

    def __init__(
        self,
        *,
        store: Store,
        registry: Registry,
        config: Config,
        prompts: PromptBook,
        graders: Mapping[str, Grader],
        workbench: Callable[[], Workbench],
        progress: Progress = _silent,
    ) -> None:
        self._store = store
        self._registry = registry
        self._config = config
        self._prompts = prompts
        self._graders = graders
        self._make_workbench = workbench
        self._workbench: Workbench | None = None
        self._progress = progress

    def run(self) -> tuple[str, Decision | None]:
        """Resume or start a run; returns its id and the decision, or None where training stopped itself.

        Raises: UsageError for too little feedback; Conflict where another learner holds the lease.
        """
        with Held(self._store, "learner") as self._fence:
            run_id, outputs = self._unfinished() or self._start()
            try:
                return run_id, self._advance(run_id, outputs)
            except GuardTripped as stop:
                self._record(run_id, "stopped", {"reason": str(stop), "log": list(stop.log)})
                self._store.set_run_state(run_id, "stopped", fence=self._fence).result()
                return run_id, None

    def _unfinished(self) -> tuple[str, Outputs] | None:
        for run in self._store.runs():
            if run.state == "running":
                return run.run_id, {step.step: step.output for step in self._store.run_steps(run.run_id)}
        return None

    def _start(self) -> tuple[str, Outputs]:
        """The first two steps can refuse for want of feedback, so the run is created once they have not."""
        run_id = new_id("run")
        collected = self._collect()
        curated = self._curate(collected)
        self._store.create_run(run_id, run_config(self._config), "running").result()
        self._record(run_id, "collect", collected)
        self._record(run_id, "curate", curated)
        return run_id, {"collect": collected, "curate": curated}

    def _advance(self, run_id: str, outputs: Outputs) -> Decision | None:
        actions: dict[str, Callable[[str, Outputs], dict[str, Any]]] = {
            "collect": lambda _id, _outputs: self._collect(),
            "curate": lambda _id, seen: self._curate(seen["collect"]),
            "train": self._train,
            "register": self._register,
            "gate": self._gate,
            "decide": self._decide,
        }
        for name in STEPS:
            if name not in outputs:
                outputs[name] = actions[name](run_id, outputs)
                self._record(run_id, name, outputs[name])
            self._progress(name, 1, 1, {})
        self._store.set_run_state(run_id, "finished", fence=self._fence).result()
        return decision_from(outputs["decide"]["decision"])

    def _record(self, run_id: str, step: str, output: dict[str, Any]) -> None:
        self._store.finish_step(run_id, step, output, fence=self._fence).result()

    # -- the steps -----------------------------------------------------------------------------------------------

    def _collect(self) -> dict[str, Any]:
        """The window: feedback given or changed since the run behind the live policy looked last."""
        since = 0.0
        for run in self._store.runs():
            steps = {step.step: step.output for step in self._store.run_steps(run.run_id)}
            if steps.get("decide", {}).get("decision", {}).get("verdict") == "promote":
                since = max(since, float(steps["collect"]["until"]))
        return {"since": since, "until": time.time(), "live": self._registry.live().version}

    def _curate(self, collected: Mapping[str, Any]) -> dict[str, Any]:
        items = [
            item
            for item in self._store.feedback(include_retracted=True)
            if collected["since"] < item.updated_at <= collected["until"]
        ]
        calls = {call.call_id: call for call in self._store.calls(since=collected["since"])}
        for item in items:
            late = self._store.get_call(item.target_id) if item.target_kind == "call" else None
            calls.update({late.call_id: late} if late is not None else {})
        ordered = sorted(calls.values(), key=lambda call: (call.created_at, call.call_id))
        manifest = curate(ordered, items, self._config.curation)
        return {"manifest": asdict(manifest), "calls": len(ordered), "feedback": len(items)}

    def _train(self, run_id: str, outputs: Outputs) -> dict[str, Any]:
        live = self._registry.get(outputs["collect"]["live"])
        manifest = manifest_from(outputs["curate"]["manifest"])
        folder = self._config.runs_dir / run_id
        learner = Learner(self._bench(), self._prompts, self._config, self._store, live)
        outcome = learner.train(manifest, folder / "training", self._progress)
        adapter = folder / "adapter"
        shutil.rmtree(adapter, ignore_errors=True)
        digest = self._bench().trainer.publish(adapter)
        return {"adapter": str(adapter), "digest": digest, **asdict(outcome)}

    def _register(self, run_id: str, outputs: Outputs) -> dict[str, Any]:
        """The candidate of this run, once: a run killed after registering finds it again."""
        for known in self._registry.list():
            if known.run_id == run_id:
                return {"version": known.version, "digest": known.digest}
        made = self._registry.register_candidate(
            self._config.runs_dir / run_id / "adapter", parent=outputs["collect"]["live"], run_id=run_id
        )
        return {"version": made.version, "digest": made.digest}

    def _gate(self, run_id: str, outputs: Outputs) -> dict[str, Any]:
        live = self._registry.get(outputs["collect"]["live"])
        candidate = self._registry.verify(outputs["register"]["version"])
        manifest = manifest_from(outputs["curate"]["manifest"])
        examiner = Examiner(self._bench(), self._prompts, self._config, self._graders, self._store)
        return examiner.examine(manifest, live, candidate, self._progress)

    def _decide(self, run_id: str, outputs: Outputs) -> dict[str, Any]:
        """Apply the verdict. If the pointer moved meanwhile, the comparison is void: the candidate is refused."""
        version, live = outputs["register"]["version"], outputs["collect"]["live"]
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
