"""The real examiner and the real gate on calls that a real model answered: what it lets through and what it does not.

Pins: an adapter that changes nothing is refused, because nothing got better; one that ruins the policy is refused, and
the guards that it broke are named; one that learned what people asked for is promoted. A refusal leaves the live
version where it was, with the reason on record.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from openai import OpenAI
from tests.e2e.conftest import Cli, settings, tiny_folder

from practicum.cli import wiring
from practicum.client import Client
from practicum.config import Config, GateConfig, load_config
from practicum.curation import curate
from practicum.engines.embedded.adapter import write_adapter
from practicum.engines.embedded.settings import LoraSettings
from practicum.engines.embedded.workbench import EmbeddedWorkbench
from practicum.live.examine import Examiner
from practicum.live.loop import Loop
from practicum.live.prompts import PromptBook
from practicum.live.records import checks_from
from practicum.policies import Registry
from practicum.release.gate import decide
from practicum.store import Store, create_key, open_store
from practicum.types.policies import Decision, GateCheck

__all__ = ["tiny_folder"]
WANTED = "send another one ."


@dataclass(frozen=True)
class Team:
    """A home with a day of answers and feedback, and the engine that learns from them."""

    config: Config
    store: Store
    registry: Registry
    bench: EmbeddedWorkbench
    prompts: PromptBook


@pytest.fixture(scope="module")
def team(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    cli = Cli(tmp_path_factory.mktemp("gate") / "home", settings(tiny_folder))
    config = load_config(cli.config, {"home": str(cli.home)}, environ={})
    with open_store(config.store_path) as store:
        key = create_key(store, "team", ["sample", "feedback"])
        with cli.serving() as served:
            _a_day(served.url, key)
        bench = EmbeddedWorkbench(tiny_folder, config.model, config.learn)
        prompts = PromptBook(wiring.renderer(config), config.gateway.default_max_tokens)
        yield Team(config, store, Registry(store, config.policies_dir), bench, prompts)
        bench.close()


def _a_day(url: str, key: str, n: int = 24) -> None:
    """Answers, and on every one a corrected answer or a comment."""
    agent = OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    with Client(base_url=url, api_key=key) as people:
        for index in range(n):
            answer = agent.chat.completions.create(
                model="practicum",
                messages=[{"role": "user", "content": f"the lamp number {index} is broken"}],
                max_tokens=12,
                seed=index,
            )
            if index % 4 == 3:
                people.comment(answer.id, f"please send another one, remark {index}", user=f"u{index}")
            else:
                people.correct(answer.id, WANTED, user=f"u{index}")


def examine(team: Team, adapter: Path, gate: GateConfig | None = None) -> tuple[int, tuple[GateCheck, ...]]:
    """Register a candidate and gather the evidence on it; its number and the gate's lines."""
    config = team.config if gate is None else team.config.model_copy(update={"gate": gate})
    candidate = team.registry.register_candidate(adapter, parent=0)
    manifest = curate(team.store.calls(), team.store.feedback(), team.config.curation)
    examiner = Examiner(team.bench, team.prompts, config, {}, team.store)
    found = examiner.examine(manifest, team.registry.get(0), candidate, lambda *_: None)
    return candidate.version, checks_from(found["checks"])


def refused(team: Team, version: int, lines: tuple[GateCheck, ...]) -> Decision:
    """The gate's decision, applied: a refusal that changed nothing."""
    decision = decide(lines, version=version, live=0, actor="gate")
    assert decision.verdict == "refuse"
    assert team.registry.apply_decision(decision).version == 0
    assert team.registry.get(version).status == "refused"
    assert team.registry.decisions(version)[-1].reason == decision.reason
    return decision


def test_a_candidate_that_changes_nothing_is_refused_and_the_target_is_named(team: Team, tmp_path: Path) -> None:
    team.bench.start_from(team.registry.get(0))
    assert not any(tensor.any() for name, tensor in team.bench.trainer.adapter_state().items() if "lora_B" in name)
    team.bench.trainer.publish(tmp_path / "nothing")
    version, lines = examine(team, tmp_path / "nothing")
    decision = refused(team, version, lines)
    assert [line.name for line in lines if not line.passed] == [lines[0].name]
    assert decision.reason.startswith("target: held-out feedback, wins minus losses")
    distance = next(line for line in lines if line.name.startswith("distance"))
    assert abs(distance.estimate) < 1e-5, "the same policy is at no distance from itself"


def test_a_ruined_candidate_is_refused_and_what_it_broke_is_named(team: Team, tmp_path: Path) -> None:
    torch.manual_seed(3)
    state = {name: torch.randn_like(tensor) * 2 for name, tensor in team.bench.trainer.adapter_state().items()}
    write_adapter(tmp_path / "ruined", state, LoraSettings(rank=8, alpha=16), base_model="tiny")
    version, lines = examine(team, tmp_path / "ruined", GateConfig())
    target, *guards = lines
    assert not target.passed and target.estimate < 0
    decision = refused(team, version, lines)
    assert decision.reason.startswith("target: held-out feedback")
    broken = [line.name for line in guards if not line.passed]
    assert any(name.startswith("distance to the live policy") for name in broken)
    assert all(name in decision.reason for name in broken)


def test_a_candidate_that_learned_what_was_asked_for_is_promoted(team: Team) -> None:
    loop = Loop(
        store=team.store,
        registry=team.registry,
        config=team.config,
        prompts=team.prompts,
        graders={},
        workbench=lambda: team.bench,
    )
    _, decision = loop.run()
    assert decision is not None and decision.verdict == "promote", decision
    assert decision.reason.startswith("target: held-out feedback") and "every guard held" in decision.reason
    assert team.registry.live().version == decision.version and team.registry.live().status == "live"
    assert [known.status for known in team.registry.list()] == ["retired", "refused", "refused", "live"]
