"""One learning run from feedback: collect, curate, train, register, gate, decide; resumable as `steps.py` says.

Inside training, a run that was killed goes on at the newest checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from practicum.config import Config
from practicum.curation import curate
from practicum.evals.graders import Grader
from practicum.live.examine import Examiner
from practicum.live.learner import Learner
from practicum.live.prompts import PromptBook
from practicum.live.records import manifest_from
from practicum.live.steps import Outputs, Step, Steps, silent
from practicum.live.workbench import Workbench
from practicum.policies import Registry
from practicum.store import Store
from practicum.types.ids import new_id
from practicum.types.training import Progress


class Loop(Steps):
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
        progress: Progress = silent,
    ) -> None:
        super().__init__("learn", store=store, registry=registry, config=config, workbench=workbench, progress=progress)
        self._prompts = prompts
        self._graders = graders

    def _start(self) -> tuple[str, Outputs]:
        """The first two steps can refuse for want of feedback, so the run is created once they have not."""
        run_id = new_id("run")
        collected = self._collect()
        curated = self._curate(collected)
        self._create(run_id)
        self._record(run_id, "collect", collected)
        self._record(run_id, "curate", curated)
        return run_id, {"collect": collected, "curate": curated}

    def _steps(self) -> Mapping[str, Step]:
        return {
            "collect": lambda _id, _outputs: self._collect(),
            "curate": lambda _id, seen: self._curate(seen["collect"]),
            "train": self._train,
            "register": self._register,
            "gate": self._gate,
            "decide": self._decide,
        }

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
        learner = Learner(self._bench(), self._prompts, self._config, self._store, live)
        outcome = learner.train(manifest, self._config.runs_dir / run_id / "training", self._progress)
        return self._published(run_id, outcome)

    def _gate(self, run_id: str, outputs: Outputs) -> dict[str, Any]:
        live = self._registry.get(outputs["collect"]["live"])
        candidate = self._registry.verify(outputs["register"]["version"])
        manifest = manifest_from(outputs["curate"]["manifest"])
        examiner = Examiner(self._bench(), self._prompts, self._config, self._graders, self._store)
        return examiner.examine(manifest, live, candidate, self._progress)
