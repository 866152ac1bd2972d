"""The training loop over the real trainer on a tiny model.

Pins: zero signal is skipped and reported, never trained on (invariant 10); a run stopped at any checkpoint resumes to
the same weights; guards stop a run and keep its log; sampler and trainer that disagree raise the standing alarm.
"""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from practicum.engines.embedded.settings import LoraSettings, TrainerSettings
from practicum.engines.embedded.trainer import EmbeddedTrainer
from practicum.errors import GuardTripped
from practicum.trainer.guards import Guards
from practicum.trainer.loop import Phase, Run
from practicum.types.training import Batch, Datum, Stream


def trainer() -> EmbeddedTrainer:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    return EmbeddedTrainer(model, lora=LoraSettings(rank=4, alpha=8), settings=TrainerSettings(threads=1))


class Rows:
    """Cross-entropy on a few ids; weights may all be zero."""

    def __init__(self, weight: float = 1.0, logprobs: tuple[float, ...] | None = None) -> None:
        self.weight = weight
        self.logprobs = logprobs
        self.asked: list[int] = []

    def batch(self, step: int) -> Batch:
        self.asked.append(step)
        row = Datum(
            row_id=f"r{step}",
            prompt_ids=(1, 2),
            completion_ids=(3 + step % 4, 9),
            weights=(self.weight / 2,) * 2,
            logprobs=self.logprobs,
        )
        return Batch(
            streams=(Stream(loss="cross_entropy", rows=[row]),),
            on_policy=self.logprobs is not None,
            facts={"fresh_length": 1.0 if self.weight == 0.5 else 20.0},
        )


def phases(source: Rows, steps: int = 6) -> list[Phase]:
    return [
        Phase(name="one", source=source, steps=steps, learning_rate=0.01, fresh_optimizer=True),
        Phase(name="two", source=source, steps=steps, learning_rate=0.01),
    ]


def state(model: EmbeddedTrainer) -> dict[str, torch.Tensor]:
    return model.adapter_state()


def test_zero_signal_is_skipped_and_the_version_does_not_advance(tmp_path: Path) -> None:
    model = trainer()
    before = state(model)
    with pytest.raises(GuardTripped, match="No step had any signal") as stopped:
        Run(model, phases(Rows(0.0)), tmp_path, guards=Guards()).train()
    assert len(stopped.value.log) == 12, "the report shows what was tried"
    assert all(torch.equal(before[name], tensor) for name, tensor in state(model).items())


def test_many_steps_without_signal_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(GuardTripped, match="3 steps in a row had no signal"):
        Run(trainer(), phases(Rows(0.0)), tmp_path, guards=Guards(max_idle_steps=3)).train()


def test_where_rollouts_taught_nothing_the_reason_is_named() -> None:
    log = [{"skipped": True, "left_out/grader_failed": 3.0, "left_out/its group has no signal": 5.0}] * 2
    with pytest.raises(GuardTripped) as stopped:
        Guards(max_idle_steps=2).check(log)
    assert stopped.value.message == (
        "2 steps in a row had no signal; of the last one's rollouts were left out: "
        "3 because grader_failed, 5 because its group has no signal."
    )


class Killed(Exception):
    """Stands for the process's death: nothing of the loop catches it."""


class Dying(Rows):
    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at

    def batch(self, step: int) -> Batch:
        self._left -= 1
        if self._left < 0:
            raise Killed
        return super().batch(step)


@pytest.mark.parametrize("at", [1, 3, 6, 7, 11])
def test_a_run_cut_off_anywhere_resumes_to_the_same_weights(tmp_path: Path, at: int) -> None:
    whole = trainer()
    outcome = Run(whole, phases(Rows()), tmp_path / "whole", guards=Guards(), checkpoint_every=2).train()
    with pytest.raises(Killed):
        Run(trainer(), phases(Dying(at)), tmp_path / "cut", guards=Guards(), checkpoint_every=2).train()
    resumed = trainer()
    again = Run(resumed, phases(Rows()), tmp_path / "cut", guards=Guards(), checkpoint_every=2).train()
    assert all(torch.equal(tensor, state(resumed)[name]) for name, tensor in state(whole).items())
    assert (again.steps, again.trained_tokens) == (outcome.steps, outcome.trained_tokens) == (12, 24)


def test_a_guard_stops_the_run_and_keeps_its_log(tmp_path: Path) -> None:
    with pytest.raises(GuardTripped, match="below 3") as stopped:
        Run(trainer(), phases(Rows(0.5)), tmp_path, guards=Guards()).train()
    assert len(stopped.value.log) == Guards().window


def test_l12_a_sampler_that_holds_other_weights_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(GuardTripped, match="do not hold the same policy"):
        Run(trainer(), phases(Rows(logprobs=(-0.5, -0.5))), tmp_path, guards=Guards()).train()
