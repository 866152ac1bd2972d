"""Our group losses against TRL's `GRPOTrainer`: the same batch, the same LoRA weights, the same gradient.

TRL's own `compute_loss` runs on inputs prepared here, over prompts padded on the left and completions on the right;
ours on the rows that the algorithm makes of graded rollouts. Prompts and completions are ragged, a completion has a
span that was not sampled, advantages have both signs, and the old logprobs are so far off that every clip acts.
"""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from practicum.algorithms.group import Graded
from practicum.algorithms.table import algorithm
from practicum.engines.embedded.settings import LoraSettings, TrainerSettings
from practicum.engines.embedded.trainer import EmbeddedTrainer
from practicum.types.episodes import TrainingRow
from practicum.types.ids import new_id
from practicum.types.training import Datum

trl = pytest.importorskip("trl", reason="pip install 'practicum[test]' brings TRL, which this compares with")
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from tokenizers import Tokenizer, models  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

VOCABULARY, TEMPERATURE, LONGEST = 67, 0.8, 24
LORA = LoraSettings(rank=4, alpha=8)
REWARDS = (1.0, 0.0, 0.3, 0.0, 0.0, 2.0, 0.5, 0.1)


def base() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def state(trainer: EmbeddedTrainer) -> dict[str, torch.Tensor]:
    """Adapter tensors with an effect."""
    generator = torch.Generator().manual_seed(5)
    return {
        name: 0.2 * torch.randn(each.shape, generator=generator) for name, each in trainer.policy.parameters().items()
    }


@pytest.fixture(scope="module")
def ours() -> EmbeddedTrainer:
    torch.set_num_threads(1)
    trainer = EmbeddedTrainer(base(), lora=LORA, settings=TrainerSettings(threads=1, micro_batch_tokens=100))
    trainer.policy.put("policy", state(trainer))
    trainer.set_reference(None)
    return trainer


@pytest.fixture(scope="module")
def rollouts(ours: EmbeddedTrainer) -> list[Graded]:
    """Two groups of four, sampled by nobody: mu is the policy's own logprob, moved by up to .6 nats a token."""
    chance = random.Random(3)
    made = []
    for place, reward in enumerate(REWARDS):
        if place % 4 == 0:
            prompt = tuple(chance.randrange(3, VOCABULARY) for _ in range(chance.randrange(2, 12)))
        length = chance.randrange(3, LONGEST)
        row = TrainingRow(
            row_id=f"r{place}",
            episode_id=f"r{place}",
            session_id=f"r{place}",
            prompt_ids=prompt,
            completion_ids=tuple(chance.randrange(3, VOCABULARY) for _ in range(length)),
            mask=tuple(not (place == 5 and 4 <= token < 8) for token in range(length)),
            logprobs=(0.0,) * length,
            versions=(0,) * length,
            temperature=TEMPERATURE,
            call_ids=(),
        )
        made.append(Graded(rollout_id=row.row_id, group=place // 4, reward=reward, rows=(row,)))
    batch = algorithm("dppo").batch(made)
    known = ours.forward_backward(batch.streams[0].rows, "policy_gradient", key="look").logprobs
    return [moved(each, known[each.rollout_id], chance) for each in made]


def moved(rollout: Graded, logprobs: tuple[float, ...], chance: random.Random) -> Graded:
    """The rollout with a sampler's logprobs that differ: a drift of its own, and one of every token."""
    (row,) = rollout.rows
    drift = chance.uniform(-0.25, 0.25)
    mu = tuple(
        value + drift + chance.uniform(-0.35, 0.35) if own else None
        for value, own in zip(logprobs, row.mask, strict=True)
    )
    return replace(rollout, rows=(replace(row, logprobs=mu),))


def our_gradient(ours: EmbeddedTrainer, rollouts: list[Graded], name: str, options: dict[str, Any]) -> Any:
    (stream,) = algorithm(name, options).batch(rollouts).streams
    ours.policy.put("policy", state(ours))
    for parameter in ours.policy.parameters().values():
        parameter.grad = torch.zeros_like(parameter)
    result = ours.forward_backward(stream.rows, stream.loss, key=new_id("case"), policy_gradient=stream.policy_gradient)
    gradient = {each: parameter.grad.clone() for each, parameter in ours.policy.parameters().items()}
    return stream.rows, result, gradient


def their_trainer(folder: Path, ours: EmbeddedTrainer, settings: dict[str, Any]) -> Any:
    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{index}": index for index in range(3, VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")), pad_token="<pad>", eos_token="</s>"
    )
    arguments = trl.GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=len(REWARDS),
        num_generations=4,
        max_completion_length=LONGEST,
        temperature=TEMPERATURE,
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        **settings,
    )
    peft = LoraConfig(
        r=LORA.rank, lora_alpha=LORA.alpha, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    trainer = trl.GRPOTrainer(
        model=base(),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "w5 w6"}] * len(REWARDS)),
        processing_class=tokenizer,
        peft_config=peft,
    )
    wanted = state(ours)
    with torch.no_grad():
        for name, parameter in theirs(trainer).items():
            parameter.copy_(wanted.pop(name))
    assert not wanted
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = arguments.gradient_accumulation_steps  # set by its training loop
    return trainer


def theirs(trainer: Any) -> dict[str, torch.nn.Parameter]:
    """TRL's LoRA parameters under our names."""
    return {
        name.replace(".default.weight", ".weight"): parameter
        for name, parameter in trainer.model.named_parameters()
        if ".lora_" in name
    }


def padded(values: list[tuple[Any, ...]], fill: float, *, left: bool = False) -> torch.Tensor:
    width = max(map(len, values))
    blank = [[fill] * (width - len(each)) for each in values]
    return torch.tensor(
        [[*space, *each] if left else [*each, *space] for each, space in zip(values, blank, strict=True)]
    )


def inputs_of(rows: list[Datum], trainer: Any) -> dict[str, torch.Tensor]:
    prompts, completions = [each.prompt_ids for each in rows], [each.completion_ids for each in rows]
    sampled = [tuple(int(value is not None) for value in each.logprobs or ()) for each in rows]
    inputs = {
        "prompt_ids": padded(prompts, 0, left=True),
        "prompt_mask": padded([(1,) * len(each) for each in prompts], 0, left=True),
        "completion_ids": padded(completions, 0),
        "completion_mask": padded([(1,) * len(each) for each in completions], 0),
        "tool_mask": padded(sampled, 1),
        "advantages": torch.tensor([(each.advantages or (0.0,))[0] for each in rows]),
        "old_per_token_logps": padded([tuple(value or 0.0 for value in each.logprobs or ()) for each in rows], 0.0),
        "num_items_in_batch": torch.tensor(sum(map(sum, sampled))),
    }
    if trainer.beta:
        with torch.no_grad(), trainer.model.disable_adapter():
            inputs["ref_per_token_logps"] = trainer._get_per_token_logps_and_entropies(
                trainer.model,
                torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
                torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
                inputs["completion_ids"].shape[1],
            )[0]
    return inputs


CLIPPING = {"clip_low": 0.05, "clip_high": 0.1}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "grpo": ("grpo", {}, {"loss_type": "grpo"}),
    "bnpo": ("grpo", {"aggregation": "bnpo"}, {"loss_type": "bnpo"}),
    "dr_grpo": ("dr_grpo", {"max_length": LONGEST}, {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    "dapo": ("dapo", {}, {"loss_type": "dapo", "epsilon_high": 0.28}),
    "gspo": ("gspo", {}, {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4,
                          "epsilon_high": 4e-4}),
    "gspo, wide": ("gspo", CLIPPING, {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.05,
                                      "epsilon_high": 0.1}),
    "cispo": ("cispo", {"cap": 1.2}, {"loss_type": "cispo", "epsilon_high": 1.2}),
    "dual clip": ("grpo", {"dual_clip": 1.3}, {"loss_type": "grpo", "delta": 1.3}),
    "stale negatives": ("grpo", {"sequence_delta": 0.05}, {"loss_type": "grpo", "off_policy_mask_threshold": 0.05}),
    "anchored": ("dapo", {"kl_coef": 0.3, "kl_kind": "k3"},
                 {"loss_type": "dapo", "epsilon_high": 0.28, "beta": 0.3, "use_bias_correction_kl": False}),
    "anchored, unbiased": ("grpo", {"kl_coef": 0.3, "kl_unbiased": True},
                           {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_trls(case: str, ours: EmbeddedTrainer, rollouts: list[Graded], tmp_path: Path) -> None:
    name, options, settings = CASES[case]
    rows, result, expected = our_gradient(ours, rollouts, name, options)
    trainer = their_trainer(tmp_path, ours, settings)
    loss = trainer.compute_loss(trainer.model, inputs_of(rows, trainer))
    loss.backward()
    assert_same(expected, theirs(trainer))
    assert result.loss_sum == pytest.approx(loss.item(), rel=1e-4, abs=1e-5)
    assert result.sums["positive_sum"] > 20 and result.sums["negative_sum"] > 20
    if case == "stale negatives":
        assert 0 < result.sums["rejected_sum"] < result.tokens
    else:
        assert 0 < result.sums["clipped_sum"] < result.tokens


def test_accumulated_over_micro_batches_it_still_is(
    ours: EmbeddedTrainer, rollouts: list[Graded], tmp_path: Path
) -> None:
    rows, _, expected = our_gradient(ours, rollouts, "dapo", {})
    settings = {"loss_type": "dapo", "epsilon_high": 0.28, "gradient_accumulation_steps": 2}
    trainer = their_trainer(tmp_path, ours, settings)
    whole = inputs_of(rows, trainer)
    for part in (slice(0, 4), slice(4, 8)):
        inputs = {key: value if value.dim() == 0 else value[part] for key, value in whole.items()}
        trainer.compute_loss(trainer.model, inputs).backward()
    assert_same(expected, theirs(trainer))


def assert_same(expected: dict[str, torch.Tensor], found: dict[str, torch.nn.Parameter]) -> None:
    assert expected.keys() == found.keys()
    largest = max(each.abs().max().item() for each in expected.values())
    assert largest > 1e-3
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name].grad, gradient, rtol=1e-4, atol=1e-5 * largest)
