"""Every way through the trainer gives the gradients and logprobs of one plain row at a time.

Pins, for adapters and whole models, fused layers and transformers' own, rows packed, behind shared prompts and forked
at several depths, kept and recomputed activations, each loss: how a batch is cut and accumulated changes nothing (L1);
what is masked is in no sum and all masked is zero (L2); no token of the environment's has a gradient (L8); nothing is
trimmed (E8); a checkpoint goes on to the bit.
"""

from dataclasses import replace

import pytest
import torch
from embedded_training import LORA, LOSSES, forked_rows, gradients, make_rows, reference
from transformers import BloomConfig, BloomForCausalLM, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from practicum.engines.embedded.batches import targets_of
from practicum.engines.embedded.full import FullPolicy
from practicum.engines.embedded.lora import LoraPolicy, PeftPolicy
from practicum.engines.embedded.objectives import evaluate
from practicum.engines.embedded.settings import DistillSettings, TrainerSettings
from practicum.engines.embedded.trainer import EmbeddedTrainer
from practicum.errors import ContextOverflow
from practicum.types.training import PolicyGradient

KL = 0.1
# Rejects no row, and has to see whole ones to know.
WHOLE_ROWS = PolicyGradient(geometric=(0.0, 1e9))


def make_qwen3(_):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=259, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, initializer_range=0.2,
        tie_word_embeddings=False,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval().requires_grad_(False)


def make_qwen2(make_model):
    from transformers import Qwen2Config

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=259, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=512, initializer_range=0.2,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).eval().requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj.bias.normal_(0, 0.3)
    return model


def make_bloom(_):
    torch.manual_seed(0)
    config = BloomConfig(vocab_size=259, hidden_size=64, n_layer=2, n_head=4, initializer_range=0.2)
    config._attn_implementation = "eager"
    model = BloomForCausalLM(config).eval().requires_grad_(False)
    model.config.max_position_embeddings = 512
    return model


# name: (model, what the policy is, whether beginnings are shared)
MODELS = {
    "llama": (lambda make: make(), LoraPolicy, True),
    "qwen3": (make_qwen3, LoraPolicy, True),
    "qwen2": (make_qwen2, LoraPolicy, True),
    "module": (lambda make: make(hidden_act="gelu"), PeftPolicy, True),
    "apart": (make_bloom, PeftPolicy, False),
}


def make(model, *, weights="lora", **settings):
    distill = settings.pop("distill", DistillSettings(kl_coef=KL))
    return EmbeddedTrainer(model, lora=LORA, settings=TrainerSettings(weights=weights, distill=distill, **settings))


def warm(trainer, weights):
    trainer.forward_backward(make_rows(3, seed=99), "cross_entropy", key="warm")
    trainer.optim_step(learning_rate=1e-2 if weights == "lora" else 2e-3, key="warm-step")
    trainer.set_reference(None)


def assert_exact(found, expected):
    """Equal to 1e-5 of the gradient's largest entry."""
    scale = max(float(each.abs().max()) for each in expected.values())
    assert scale > 0
    worst = max(float((found[name] - expected[name]).abs().max()) for name in expected)
    assert worst <= 1e-5 * scale, (worst, scale)


def check(model, weights, rows, loss, **settings):
    trainer = make(model, weights=weights, **settings)
    warm(trainer, weights)
    total, logprobs, expected = reference(model, trainer.adapter_state(), rows, loss, kl_coef=KL)
    found = trainer.forward_backward(rows, loss, key="a")
    assert found.loss_sum == pytest.approx(total, rel=1e-5, abs=1e-4)
    for row in rows:
        assert found.logprobs[row.row_id] == pytest.approx(logprobs[row.row_id], abs=1e-5, rel=1e-5)
    assert_exact(gradients(trainer), expected)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weights", ["lora", "full"])
@pytest.mark.parametrize("name", MODELS)
def test_every_policy_is_exact_on_forked_rows(name, weights, loss, make_model):
    build, kind, trees = MODELS[name]
    model = build(make_model)
    policy = make(model, weights=weights).policy
    assert type(policy) is (kind if weights == "lora" else FullPolicy) and policy.trees is trees
    check(model, weights, forked_rows(), loss)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weights", ["lora", "full"])
@pytest.mark.parametrize("name", ["llama", "module"])
def test_recomputed_activations_are_exact(name, weights, loss, make_model):
    check(MODELS[name][0](make_model), weights, forked_rows(), loss, checkpoint_over_tokens=1)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weights", ["lora", "full"])
@pytest.mark.parametrize("name", ["llama", "module"])
def test_l1_any_split_of_packed_rows_is_exact(name, weights, loss, make_model):
    model = MODELS[name][0](make_model)
    rows = [*make_rows(4), *forked_rows()]
    for budget in (1, 100, 10_000):
        check(model, weights, rows[:: 1 if budget > 1 else -1], loss, micro_batch_tokens=budget)
    trainer = make(model, weights=weights)
    warm(trainer, weights)
    _, _, expected = reference(model, trainer.adapter_state(), rows, loss, kl_coef=KL)
    for start in (0, 3, 9):
        part = rows[start : {0: 3, 3: 9, 9: None}[start]]
        trainer.forward_backward(part, loss, key=f"{start}")
    assert_exact(gradients(trainer), expected)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weights", ["lora", "full"])
@pytest.mark.parametrize("name", ["llama", "module", "apart"])
def test_l2_what_is_masked_is_in_no_sum(name, weights, loss, make_model):
    """Masked rows beside others change nothing but the company; all masked is zero, and finite."""
    model = MODELS[name][0](make_model)
    rows = forked_rows()
    masked = [replace(row, weights=(0.0,) * len(row.completion_ids)) for row in rows]
    mixed = [own if index % 2 else none for index, (own, none) in enumerate(zip(rows, masked, strict=True))]
    trainer, fewer = make(model, weights=weights), make(model, weights=weights)
    for each in (trainer, fewer):
        warm(each, weights)
    found = trainer.forward_backward(mixed, loss, key="a")
    alone = fewer.forward_backward(rows[1::2], loss, key="a")
    assert found.tokens == alone.tokens
    assert found.sums == pytest.approx(alone.sums, rel=1e-4, abs=1e-4)
    assert_exact(gradients(trainer), gradients(fewer))
    trainer.optim_step(learning_rate=0.0, key="clear")
    nothing = trainer.forward_backward(masked, loss, key="b")
    assert nothing.loss_sum == 0 and nothing.tokens == 0
    assert all(not gradient.any() for gradient in gradients(trainer).values())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weights", ["lora", "full"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("settings", [{}, {"checkpoint_over_tokens": 1}, {"micro_batch_tokens": 1}])
def test_l8_tokens_of_the_environment_have_no_gradient(name, weights, loss, settings, make_model):
    """As targets they are nothing: a row that ends in other ones has the same gradient to the bit."""
    model = MODELS[name][0](make_model)
    found = []
    for last in (3, 200):
        trainer = make(model, weights=weights, **settings)
        warm(trainer, weights)
        rows = [
            replace(
                row,
                completion_ids=(*row.completion_ids, last),
                weights=(*row.weights, 0.0),
                advantages=(*row.advantages, 1.0),
                logprobs=(*row.logprobs, None),
            )
            for row in forked_rows()
        ]
        trainer.forward_backward(rows, loss, key="a")
        found.append(gradients(trainer))
    for name_, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name_])
    assert any(gradient.any() for gradient in found[0].values())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("whole_rows", [False, True])
def test_l8_other_targets_at_masked_places_change_no_bit_in_the_middle_either(loss, whole_rows, model):
    """The hidden states stay, only what would be predicted there changes."""
    targets = targets_of(forked_rows())
    torch.manual_seed(0)
    hidden, teacher = torch.randn(len(targets.ids), 64), torch.randn(len(targets.ids), 259)
    moved = replace(targets, ids=torch.where(targets.weights == 0, (targets.ids + 7) % 259, targets.ids))
    assert not torch.equal(moved.ids, targets.ids)
    one, other = (
        evaluate(
            loss, hidden, model.get_output_embeddings(), each, TrainerSettings(distill=DistillSettings(kl_coef=KL)),
            teacher=lambda index: teacher[index], reference=lambda index: teacher[index],
            policy_gradient=WHOLE_ROWS if whole_rows else PolicyGradient(),
        )
        for each in (targets, moved)
    )  # fmt: skip
    assert torch.equal(one.gradient, other.gradient) and one.loss_sum == other.loss_sum
    assert not one.gradient[targets.weights == 0].any() and one.gradient[targets.weights != 0].any(dim=1).all()


def test_weights_that_need_whole_rows_give_the_same_in_two_passes(model):
    targets = targets_of(forked_rows())
    torch.manual_seed(0)
    hidden = torch.randn(len(targets.ids), 64)
    once, twice = (
        evaluate(
            "policy_gradient", hidden, model.get_output_embeddings(), targets, TrainerSettings(), policy_gradient=how
        )
        for how in (PolicyGradient(), WHOLE_ROWS)
    )
    torch.testing.assert_close(once.gradient, twice.gradient)
    torch.testing.assert_close(once.logprobs, twice.logprobs)
    assert once.loss_sum == pytest.approx(twice.loss_sum, rel=1e-6)
    assert once.sums == pytest.approx(twice.sums, rel=1e-5)


@pytest.mark.parametrize("weights", ["lora", "full"])
@pytest.mark.parametrize("name", ["llama", "module", "apart"])
def test_e8_a_row_that_is_too_long_is_refused_whole(name, weights, make_model):
    trainer = make(MODELS[name][0](make_model), weights=weights)
    rows = forked_rows()
    long = replace(rows[0], row_id="long", prompt_ids=(1,) * 512)
    with pytest.raises(ContextOverflow, match="never cut"):
        trainer.forward_backward([*rows, long], "cross_entropy", key="a")
    assert all(not gradient.any() for gradient in gradients(trainer).values())


@pytest.mark.parametrize("settings", [{}, {"checkpoint_over_tokens": 1}])
@pytest.mark.parametrize("weights", ["lora", "full"])
@pytest.mark.parametrize("name", ["llama", "module", "apart"])
def test_a_resumed_trainer_goes_on_to_the_bit(name, weights, settings, make_model, tmp_path):
    """Saved within an accumulation, with a teacher that is the policy of an earlier step."""
    model = MODELS[name][0](make_model)

    def go_on(trainer):
        trainer.optim_step(learning_rate=1e-3, key="c")
        for index, loss in enumerate(LOSSES):
            trainer.forward_backward(forked_rows(), loss, key=f"f{index}")
            trainer.optim_step(learning_rate=1e-3, key=f"s{index}")
        return trainer.adapter_state()

    trainer = make(model, weights=weights, **settings)
    warm(trainer, weights)
    trainer.freeze_teacher()
    first = trainer.forward_backward(forked_rows(), "distill", key="pending")
    checkpoint = trainer.save(tmp_path / "c")
    assert trainer.save(tmp_path / "c") == checkpoint
    expected = go_on(trainer)
    resumed = make(model, weights=weights, **settings)
    resumed.load(tmp_path / "c")
    assert resumed.forward_backward(forked_rows(), "distill", key="pending") == first
    found = go_on(resumed)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[each], expected[each]) for each in expected)
