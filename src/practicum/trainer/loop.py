"""The training loop: phases of steps over a `Trainer`, guarded, checkpointed and resumable.

A phase's source makes the rows of step n from the seed, n and the current weights alone, so a run that was killed and
resumed from its last checkpoint takes the same steps as an undisturbed one. The loop knows losses by name and never
what they are for.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from practicum.errors import GuardTripped
from practicum.trainer.guards import Guards
from practicum.types.seams import Trainer
from practicum.types.training import Batch, ForwardBackward, Progress, Stream


class RowSource(Protocol):
    """Makes the rows of a step; deterministic in its seed, the step and the trainer's weights."""

    def batch(self, step: int) -> Batch:
        """The rows of step `step`, counted from 0 within the phase."""


@runtime_checkable
class Remembering(Protocol):
    """A source whose later rows depend on what came of earlier ones; a checkpoint keeps that."""

    def state(self) -> Mapping[str, Any]:
        """What it remembers, as JSON."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """`steps` steps over `source` at `learning_rate`, of which the first takes half.

    `fresh_optimizer`: the optimizer forgets the phase before, whose gradients had another scale. `own_teacher`: the
    policy that the phase begins with teaches it.
    """

    name: str
    source: RowSource
    steps: int
    learning_rate: float
    fresh_optimizer: bool = False
    own_teacher: bool = False

    def rate(self, step: int) -> float:
        """Learning rate of step `step`."""
        return self.learning_rate / 2 if step == 0 and self.fresh_optimizer else self.learning_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a finished run of phases did; `log` has one mapping of figures a step."""

    steps: int
    skipped_steps: int
    trained_tokens: int
    sampled_tokens: int
    wall_s: float
    log: tuple[Mapping[str, Any], ...]


class Run:
    """One training run in `folder`: `checkpoint/` is the newest state, `steps.jsonl` the log up to it.

    Args:
        trainer: the backend; it must stand at the run's starting policy.
        phases: in order.
        folder: the run's own.
        guards: stop the run when a figure leaves its bounds (GuardTripped); the folder keeps the log.
        checkpoint_every: steps between checkpoints; the work lost to a kill is at most that.
    """

    def __init__(
        self, trainer: Trainer, phases: Sequence[Phase], folder: Path, *, guards: Guards, checkpoint_every: int = 8
    ) -> None:
        self._trainer = trainer
        self._phases = phases
        self._folder = folder
        self._guards = guards
        self._every = checkpoint_every
        self._log: list[dict[str, Any]] = []
        self._source_state: dict[str, Any] = {}

    def train(self, *, progress: Progress | None = None) -> Outcome:
        """Run or resume all phases. Raises GuardTripped, EngineError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        done = self._resume()
        for index, phase in enumerate(self._phases):
            if done.get(phase.name, 0) < phase.steps:
                if phase.name in done and isinstance(phase.source, Remembering):
                    phase.source.restore(self._source_state)
                self._run_phase(index, phase, done.get(phase.name, 0), progress)
        return self._outcome()

    def _run_phase(self, index: int, phase: Phase, first: int, progress: Progress | None) -> None:
        if first == 0 and phase.fresh_optimizer:
            start = self._folder / f"phase-{index}"
            shutil.rmtree(start, ignore_errors=True)
            self._trainer.publish(start)
            self._trainer.set_policy(start)
        if first == 0 and phase.own_teacher:
            self._trainer.freeze_teacher()
        for step in range(first, phase.steps):
            figures = self._step(index, phase, step)
            self._log.append(figures)
            if progress is not None:
                progress(phase.name, step + 1, phase.steps, figures)
            try:
                self._guards.check(self._log)
            except GuardTripped as stop:
                stop.log = tuple(self._log)
                raise
            if (step + 1) % self._every == 0 or step + 1 == phase.steps:
                self._checkpoint(phase.source)

    def _step(self, index: int, phase: Phase, step: int) -> dict[str, Any]:
        began = time.monotonic()
        batch = phase.source.batch(step)
        made_s = time.monotonic() - began
        sampled_s = made_s - batch.facts.get("eval_s", 0.0)
        figures: dict[str, Any] = {"phase": phase.name, "step": step, "sampled_tokens": batch.sampled_tokens}
        figures.update(batch.facts)
        streams = [stream for stream in batch.streams if any(any(row.weights) for row in stream.rows)]
        if all(stream.anchor for stream in streams):
            # Nothing to learn from: skipped and reported, never "trained on".
            return figures | {"skipped": True, "trained_tokens": 0, "sample_s": sampled_s, "train_s": 0.0}
        key = f"{index}:{phase.name}:{step}"
        results = [
            (
                stream,
                self._trainer.forward_backward(
                    stream.rows, stream.loss, key=f"{key}:{place}", policy_gradient=stream.policy_gradient
                ),
            )
            for place, stream in enumerate(streams)
        ]
        figures.update(self._trainer.optim_step(learning_rate=phase.rate(step), key=key))
        figures["step"] = step
        figures.update(_summed(results))
        if batch.on_policy:
            figures["logprob_gap"] = _logprob_gap(results)
        return figures | {"sample_s": sampled_s, "train_s": time.monotonic() - began - made_s}

    def _checkpoint(self, source: RowSource) -> None:
        """The log is part of the checkpoint's folder name's truth: both are replaced together by one rename."""
        fresh = self._folder / "checkpoint.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        self._trainer.save(fresh / "state")
        with (fresh / "steps.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(figures) + "\n" for figures in self._log)
            file.flush()
            os.fsync(file.fileno())
        if isinstance(source, Remembering):
            (fresh / "source.json").write_text(json.dumps(source.state()), encoding="utf-8")
        old = self._folder / "checkpoint"
        stale = self._folder / "checkpoint.old"
        shutil.rmtree(stale, ignore_errors=True)
        if old.exists():
            old.rename(stale)
        fresh.rename(old)
        shutil.rmtree(stale, ignore_errors=True)

    def _resume(self) -> dict[str, int]:
        """Steps done by phase, from the newest whole checkpoint (`checkpoint.old` if a kill fell between renames)."""
        for name in ("checkpoint", "checkpoint.old"):
            folder = self._folder / name
            if (folder / "steps.jsonl").is_file():
                self._trainer.load(folder / "state")
                lines = (folder / "steps.jsonl").read_text("utf-8").splitlines()
                self._log = [json.loads(line) for line in lines]
                if (folder / "source.json").is_file():
                    self._source_state = json.loads((folder / "source.json").read_text("utf-8"))
                break
        done: dict[str, int] = {}
        for figures in self._log:
            done[figures["phase"]] = figures["step"] + 1
        return done

    def _outcome(self) -> Outcome:
        def total(name: str) -> float:
            return sum(float(figures.get(name, 0)) for figures in self._log)

        if self._log and all(figures.get("skipped") for figures in self._log):
            stop = GuardTripped(
                "No step had any signal: every row was masked or every advantage was zero.",
                hint="Rewards that are all alike, all high or all low, give no signal; nor do rows of masked tokens.",
            )
            stop.log = tuple(self._log)
            raise stop
        return Outcome(
            steps=len(self._log),
            skipped_steps=int(total("skipped")),
            trained_tokens=int(total("trained_tokens")),
            sampled_tokens=int(total("sampled_tokens")),
            wall_s=total("sample_s") + total("train_s"),
            log=tuple(self._log),
        )


def _summed(results: Sequence[tuple[Stream, ForwardBackward]]) -> dict[str, float]:
    """Loss per trained token and the backend's sums per token, by loss."""
    figures: dict[str, float] = {"trained_tokens": float(sum(result.tokens for _, result in results))}
    for stream, result in results:
        tokens = max(1, result.tokens)
        label = stream.name or stream.loss
        figures[f"{label}/loss"] = result.loss_sum
        for name, value in result.sums.items():
            figures[f"{label}/{name.removesuffix('_sum')}"] = value / tokens
    return figures


def _logprob_gap(results: Sequence[tuple[Stream, ForwardBackward]]) -> float:
    """Mean |sampler logprob - recomputed logprob| over the rows' tokens whose sampler logprob is known, in nats.

    The standing alarm for a sampler and a trainer that do not hold the same policy.
    """
    gaps = [
        abs(sampled - recomputed)
        for stream, result in results
        if not stream.anchor
        for row in stream.rows
        for sampled, recomputed in zip(row.logprobs or (), result.logprobs[row.row_id], strict=False)
        if sampled is not None
    ]
    return sum(gaps) / len(gaps) if gaps else 0.0
