"""A training run through its real parts: gateway, rollout service, sandboxes, a real harness, a tiny model.

Pins: every call is on record in its rollout's session, under the version of its step; the reward rises and the weights
move; sampler and trainer agree on every step; the gate decides by held-out tasks and asks nothing of single answers;
weights of steps are dropped once the run has decided; a run that dies anywhere goes on with the rollouts it had asked
for and ends in one decision.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.e2e.conftest import tiny_folder
from tests.e2e.training_world import train_settings, write_tasks

from practicum.capture.stalls import Stalls
from practicum.cli import rollout_host, wiring
from practicum.config import Config, load_config
from practicum.dashboard import build
from practicum.engines.embedded.workbench import EmbeddedWorkbench
from practicum.errors import ConfigError, HarnessError, NotFound
from practicum.gateway import create_app
from practicum.harnesses.results import RolloutResult
from practicum.live.groups import Rollouts
from practicum.live.prompts import PromptBook
from practicum.live.syllabus import load_syllabus
from practicum.live.training import Training
from practicum.live.workshop import Workshop
from practicum.policies import Registry
from practicum.store import Store, open_store
from practicum.types.policies import Decision
from practicum.types.rollouts import Task

__all__ = ["tiny_folder"]
STEPS = 12


@dataclass(frozen=True)
class Ran:
    """A home in which a training run has run."""

    config: Config
    store: Store
    registry: Registry
    run_id: str
    decision: Decision | None

    @property
    def outputs(self) -> dict[str, dict[str, Any]]:
        return {step.step: step.output for step in self.store.run_steps(self.run_id)}

    def log(self) -> Sequence[Mapping[str, Any]]:
        return list(self.outputs["train"]["log"])


class Interrupted(Exception):
    """The process dies here."""


def silent(stage: str, done: int, total: int, figures: Mapping[str, Any]) -> None:
    """Say nothing."""


def as_it_is(rollouts: Rollouts) -> Rollouts:
    return rollouts


def trained(
    config: Config,
    store: Store,
    *,
    through: Callable[[Rollouts], Rollouts] = as_it_is,
    progress: Callable[..., None] = silent,
) -> Ran:
    """Run a training run, or go on with one, as `practicum train` does."""
    assert config.train.tasks is not None
    registry, stalls = Registry(store, config.policies_dir), Stalls()
    bench = EmbeddedWorkbench(Path(config.model.id), config.model, config.learn)
    renderer = wiring.renderer(config)
    app = create_app(config, store, registry, bench.sampler, renderer, stalls=stalls)
    service = partial(rollout_host.rollout_service, config, store, stalls)
    try:
        with Workshop(app, config.server, service) as workshop:
            run_id, decision = Training(
                store=store,
                registry=registry,
                config=config,
                prompts=PromptBook(renderer, config.gateway.default_max_tokens),
                syllabus=load_syllabus(config.train.tasks),
                rollouts=through(workshop),
                workbench=lambda: bench,
                progress=progress,
            ).run()
    finally:
        bench.close()
    return Ran(config, store, registry, run_id, decision)


def home(folder: Path, tiny: Path, *, steps: int, more: str = "{}", **changed: str) -> Config:
    toml = folder / "practicum.toml"
    toml.write_text(train_settings(tiny, write_tasks(folder / "tasks", more=more), steps=steps), encoding="utf-8")
    named = {name.replace("__", "."): value for name, value in changed.items()}
    return load_config(toml, {"home": str(folder / "home"), **named}, environ={})


@pytest.fixture(scope="module")
def whole(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """A training run that nothing disturbed."""
    config = home(tmp_path_factory.mktemp("whole"), tiny_folder, steps=STEPS)
    with open_store(config.store_path) as store:
        yield trained(config, store)


def test_the_reward_rises_and_the_policy_that_earned_it_is_promoted(whole: Ran) -> None:
    rewards = [figures["reward"] for figures in whole.log()]
    assert len(rewards) == STEPS and sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.15, rewards
    decision = whole.decision
    assert decision is not None and decision.verdict == "promote", decision
    assert decision.figures["reward_after"] > decision.figures["reward_before"] + 0.1
    assert whole.registry.live().version == decision.version
    assert whole.registry.decisions() == [decision]


def test_every_step_has_its_figures_and_sampler_and_trainer_agree(whole: Ran) -> None:
    for step, figures in enumerate(whole.log()):
        assert (figures["step"], figures["rollouts"], figures["graded"]) == (step, 16, 16)
        assert figures["logprob_gap"] < 1e-4
        assert figures["trained_tokens"] == figures["sampled_tokens"] > 0
        assert figures["policy_gradient/ratio"] == pytest.approx(1.0, abs=1e-3), "what was sampled is on policy"


def test_calls_are_on_record_in_their_rollout_under_the_version_of_the_step(whole: Ran) -> None:
    groups = [whole.store.get_group(group.group_id) for group in whole.store.groups(limit=1000)]
    learned = [group for group in groups if group.task.task_id.startswith("late")]
    assert len(learned) == 2 * STEPS
    versions = set()
    for group in learned:
        for rollout in group.rollouts:
            (call,) = whole.store.calls(rollout.session_id)
            assert group.task.model == f"practicum@{call.versions[0]}" and len(set(call.versions)) == 1
            assert len(call.completion_ids) == len(call.logprobs) and None not in call.logprobs
            versions |= set(call.versions)
    # Step 0 is sampled from the live policy, and every other one from the weights it is about to change.
    assert len(versions) == STEPS and 0 in versions
    noted = {known.version: known.note for known in whole.registry.list() if known.note.startswith("weights")}
    assert set(noted) == versions - {0}
    assert noted[min(noted)] == "weights before step 1"


def test_the_gate_judges_by_held_out_tasks_and_asks_nothing_of_single_answers(whole: Ran) -> None:
    assert whole.decision is not None
    target, regression, distance = whole.decision.checks
    assert target.name == "target: reward on held-out tasks" and target.n == 8
    assert regression.name.startswith("regression suite") and distance.name.startswith("distance to the live policy")
    judged = [group.task for group in whole.store.groups(limit=1000) if group.task.task_id.startswith("broken")]
    models = {"practicum@0", f"practicum@{whole.decision.version}"}
    assert {task.model for task in judged} == models and len(judged) == 16
    assert whole.decision.figures["heldout_cases"] == 8


def test_the_weights_moved_and_those_of_the_steps_are_gone(whole: Ran) -> None:
    assert whole.decision is not None
    live = whole.registry.verify(whole.decision.version)
    moved = load_file(Path(str(live.adapter_path)) / "adapter_model.safetensors")
    assert any(torch.any(tensor) for name, tensor in moved.items() if "lora_B" in name)
    steps = [known for known in whole.registry.list() if known.note.startswith("weights before step")]
    assert len(steps) == STEPS - 1 and {known.status for known in steps} == {"dropped"}
    assert [path.name for path in whole.config.policies_dir.iterdir()] == [f"v{live.version}"]
    with pytest.raises(NotFound, match=r"were dropped \(weights before step 1\)"):
        whole.registry.verify(steps[0].version)


def test_the_report_speaks_of_rollouts_and_tasks(whole: Ran) -> None:
    assert whole.decision is not None
    report = build(whole.store, whole.registry)
    assert (report.kind, report.state, report.previous, report.version) == (
        "train",
        "promoted",
        0,
        whole.decision.version,
    )
    assert report.verdict.startswith(f"The agent learned from {16 * STEPS} rollouts in {STEPS} steps; on 8 held-out")
    assert "feedback" not in report.verdict and "prompt" not in report.verdict
    assert report.measures.reward_after == whole.decision.figures["reward_after"]
    assert [rate.name for rate in report.rates] == ["reward of 0.5 or more"]


# -- a run that dies ---------------------------------------------------------------------------------------------------


def dies_at(stage: str, done: int) -> Callable[..., None]:
    def progress(seen: str, at: int, total: int, figures: Mapping[str, Any]) -> None:
        if (seen, at) == (stage, done):
            raise Interrupted

    return progress


class DiesAfter:
    """Rollouts whose caller dies once it has `times` batches, before it could use the last one."""

    def __init__(self, times: int, rollouts: Rollouts) -> None:
        self._left = times
        self._rollouts = rollouts

    def check(self, tasks: Sequence[Task]) -> None:
        self._rollouts.check(tasks)

    def run(self, tasks: Mapping[str, Task]) -> dict[str, list[RolloutResult]]:
        found = self._rollouts.run(tasks)
        self._left -= 1
        if self._left == 0:
            raise Interrupted
        return found


def asked(store: Store) -> dict[str, int]:
    """How many groups there are of each task and version, and the number of calls on record."""
    counts: dict[str, int] = {}
    for group in store.groups(limit=1000):
        name = f"{group.task.task_id} {group.task.model}"
        counts[name] = counts.get(name, 0) + 1
    return counts


@pytest.mark.parametrize(
    "deaths",
    [
        [{"progress": dies_at("train", 2)}, {"through": partial(DiesAfter, 2)}],
        [{"progress": dies_at("train", 1)}, {"through": partial(DiesAfter, 1)}, {"progress": dies_at("gate", 1)}],
    ],
    ids=["in training", "behind training"],
)
def test_a_run_that_died_goes_on_with_what_it_had_asked_for(
    whole: Ran, tiny_folder: Path, tmp_path: Path, deaths: list[dict[str, Any]]
) -> None:
    steps = 3
    config = home(tmp_path, tiny_folder, steps=steps)
    with open_store(config.store_path) as store:
        for death in deaths:
            with pytest.raises(Interrupted):
                trained(config, store, **death)
            assert [run.state for run in store.runs()] == ["running"] and not store.decisions()
        ran = trained(config, store)
        assert [(run.run_id, run.state) for run in store.runs()] == [(ran.run_id, "finished")]
        assert store.decisions() == [ran.decision]
        assert set(asked(store).values()) == {1} and len(asked(store)) == 2 * steps + 16
        assert len(store.calls()) == 16 * steps + 16, "no rollout was run twice"
        # It took the steps that an undisturbed run takes.
        assert [figures["reward"] for figures in ran.log()] == [figures["reward"] for figures in whole.log()[:steps]]
        assert len([known for known in ran.registry.list() if known.note.startswith("weights")]) == steps - 1


# -- what a user may meet ----------------------------------------------------------------------------------------------


def test_a_harness_that_is_missing_is_named_and_the_run_goes_on_once_it_is_there(
    tiny_folder: Path, tmp_path: Path
) -> None:
    agent = tmp_path / "our-agent"
    command = f'{{"options": {{"command": ["{agent}", "{{instruction}}", SEEDS]}}}}'
    config = home(tmp_path, tiny_folder, steps=2, more=command)
    with open_store(config.store_path) as store:
        with pytest.raises(
            ConfigError, match=r"Task 'late0': command cannot be started: `.*our-agent` is not installed"
        ):
            trained(config, store)
        assert not store.groups() and not store.runs()
        agent.write_text("#!/no/such/interpreter\n")
        agent.chmod(0o755)
        for tried in (1, 2):
            with pytest.raises(HarnessError, match="None of the 16 rollouts of step 0 could be graded") as missing:
                trained(config, store)
            assert "our-agent" in missing.value.message
            assert len(store.groups(limit=1000)) == 2 * tried
        agent.write_text('#!/bin/sh\nexec python3 -I -S agent.py "$@"\n')
        ran = trained(config, store)
        assert [run.run_id for run in store.runs()] == [ran.run_id] and ran.decision is not None
        assert [figures["graded"] for figures in ran.log()] == [16, 16]


def test_tasks_that_teach_nothing_end_the_run_with_the_reason(tiny_folder: Path, tmp_path: Path) -> None:
    same = '{"graders": {"exit_status": {"command": ["true"]}}}'
    config = home(tmp_path, tiny_folder, steps=9, more=same)
    with open_store(config.store_path) as store:
        ran = trained(config, store)
        assert ran.decision is None and store.runs()[0].state == "stopped"
        reason = ran.outputs["stopped"]["reason"]
        assert reason.startswith("2 steps in a row had no signal; of the last one's rollouts were left out: 16 because")
        report = build(store, ran.registry)
        assert (report.state, report.version) == ("stopped", None)
        assert "before a version was made: 2 steps in a row had no signal" in report.verdict
        assert len(report.log) == 2 and all(figures["skipped"] for figures in report.log)


def test_a_run_whose_outset_is_not_live_any_more_ends_and_the_next_one_begins_anew(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config = home(tmp_path, tiny_folder, steps=1)
    with open_store(config.store_path) as store:
        with pytest.raises(Interrupted):
            trained(config, store, progress=dies_at("register", 1))
        registry = Registry(store, config.policies_dir)
        made = next(known for known in registry.list() if known.status == "candidate")
        registry.apply_decision(
            Decision(
                decision_id="dec_1",
                version=made.version,
                previous=0,
                verdict="promote",
                reason="by hand",
                actor="a person",
                created_at=1.0,
            )
        )
        ran = trained(config, store)
        assert ran.decision is None
        assert ran.outputs["stopped"]["reason"].startswith(
            f"The run set out from version 0, and {made.version} is live by now."
        )
        assert trained(config, store).run_id != ran.run_id
