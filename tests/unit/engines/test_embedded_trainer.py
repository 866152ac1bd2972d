"""The trainer: sums, masks, idempotency, order, teachers, checkpoints.

Pins: how a batch is split, ordered and padded changes nothing (L1); all masked is 0 and finite (L2); the ratio comes
from the sampler's logprobs (L7); masked tokens have zero gradient (L8); retries and order (L10); the teacher sees its
whole prompt over the same completion ids (L15, H12).
"""

from dataclasses import replace

import pytest
import torch
from embedded_training import LOSSES, gradients, make_rows, make_trainer, warm

from practicum.engines.embedded.batches import pairs_of
from practicum.engines.embedded.layout import layout_of, micro_batches
from practicum.engines.embedded.settings import DistillSettings, LoraSettings
from practicum.engines.embedded.trainer import EmbeddedTrainer
from practicum.errors import Conflict, ContextOverflow, CorruptArtifact, EngineError, RequestError, Unsupported
from practicum.types.training import Datum


def assert_same(one, two, atol=1e-5):
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=atol, rtol=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_split_order_and_padding_change_nothing(loss, model):
    rows = make_rows()
    found = []
    for budget, order in ((10_000, rows), (1, rows), (100, rows[::-1])):
        trainer = make_trainer(model, micro_batch_tokens=budget, distill=DistillSettings(kl_coef=0.1))
        warm(trainer)
        found.append((trainer.forward_backward(order, loss, key="a"), gradients(trainer)))
    separate = make_trainer(model, distill=DistillSettings(kl_coef=0.1))
    warm(separate)
    parts = [separate.forward_backward([row], loss, key=row.row_id) for row in rows]
    whole, expected = found[0]
    for result, gradient in found[1:]:
        assert_same(gradient, expected)
        assert result.loss_sum == pytest.approx(whole.loss_sum, rel=1e-5)
        assert result.tokens == whole.tokens
        assert result.sums == pytest.approx(whole.sums, rel=1e-4, abs=1e-4)
        for row in rows:
            assert result.logprobs[row.row_id] == pytest.approx(whole.logprobs[row.row_id], abs=1e-5)
    assert_same(gradients(separate), expected)
    assert sum(part.loss_sum for part in parts) == pytest.approx(whole.loss_sum, rel=1e-5)


def test_recomputing_activations_changes_nothing(model):
    found = []
    for limit in (10_000, 10):
        trainer = make_trainer(model, checkpoint_over_tokens=limit)
        warm(trainer)
        trainer.forward_backward(make_rows(), "cross_entropy", key="a")
        found.append(gradients(trainer))
    assert_same(found[0], found[1], atol=1e-6)


def test_l8_a_token_that_was_not_sampled_needs_no_logprob_and_changes_nothing(model):
    row = make_rows(1, completion_ids=(5, 6, 7), weights=(1.0, 0.0, 0.5), advantages=(1.0,) * 3, logprobs=(-3.0,) * 3)[
        0
    ]
    found = []
    for unsampled in (-3.0, None):
        trainer = make_trainer(model)
        warm(trainer)
        result = trainer.forward_backward([replace(row, logprobs=(-3.0, unsampled, -4.0))], "policy_gradient", key="a")
        found.append((result.loss_sum, gradients(trainer)))
    assert found[0][0] == found[1][0]
    assert_same(found[0][1], found[1][1], atol=0)
    _refused(replace(row, logprobs=(None, -3.0, -4.0)), "policy_gradient", RequestError, model, "sampler's logprob")


@pytest.mark.parametrize("loss", LOSSES)
def test_all_masked_is_zero_finite_and_not_a_step(loss, model):
    trainer = make_trainer(model, distill=DistillSettings(kl_coef=0.1))
    rows = [replace(row, weights=(0.0,) * len(row.completion_ids)) for row in make_rows()]
    result = trainer.forward_backward(rows, loss, key="a")
    assert result.loss_sum == 0 and result.tokens == 0
    assert all(gradient.abs().max() == 0 for gradient in gradients(trainer).values())
    assert all(len(result.logprobs[row.row_id]) == len(row.completion_ids) for row in rows)
    with pytest.raises(Conflict, match="no gradient"):
        trainer.optim_step(learning_rate=1.0, key="s")


def test_zero_advantages_are_never_trained_on(model):
    trainer = make_trainer(model)
    warm(trainer)
    before = trainer.adapter_state()
    rows = [replace(row, advantages=(0.0,) * len(row.completion_ids)) for row in make_rows()]
    trainer.forward_backward(rows, "policy_gradient", key="a")
    with pytest.raises(Conflict, match="zero"):
        trainer.optim_step(learning_rate=1.0, key="s")
    assert_same(trainer.adapter_state(), before, atol=0)


@pytest.mark.parametrize("loss", LOSSES)
def test_masked_tokens_get_no_gradient(loss, model):
    """A masked token's own id is never a target: changing the last, masked one changes no gradient at all."""
    found = []
    for last in (3, 200):
        trainer = make_trainer(model)
        warm(trainer)
        row = make_rows(1, completion_ids=(10, 20, 30, last), weights=(1.0, 1.0, 1.0, 0.0), advantages=(1.0,) * 4,
                        logprobs=(-3.0,) * 4)[0]  # fmt: skip
        trainer.forward_backward([row], loss, key="a")
        found.append(gradients(trainer))
    for name in found[0]:
        assert torch.equal(found[0][name], found[1][name])


def test_weights_scale_the_gradient_and_sums_are_sums(model):
    rows = [replace(row, weights=(1.0,) * len(row.completion_ids)) for row in make_rows()]
    found = []
    for factor in (1.0, 0.25):
        trainer = make_trainer(model)
        warm(trainer)
        scaled = [replace(row, weights=tuple(factor * weight for weight in row.weights)) for row in rows]
        found.append((trainer.forward_backward(scaled, "cross_entropy", key="a"), gradients(trainer)))
    assert found[1][0].loss_sum == pytest.approx(0.25 * found[0][0].loss_sum, rel=1e-5)
    assert_same({name: 4 * value for name, value in found[1][1].items()}, found[0][1], atol=1e-4)
    # Each row's loss is minus the sum of its recomputed logprobs.
    assert found[0][0].loss_sum == pytest.approx(-sum(sum(v) for v in found[0][0].logprobs.values()), rel=1e-5)


def test_the_ratio_moves_once_the_policy_has(model):
    trainer = make_trainer(model)
    rows = make_rows()
    first = trainer.forward_backward(rows, "policy_gradient", key="look")
    exact = [
        replace(row, logprobs=first.logprobs[row.row_id], advantages=(1.0,) * len(row.completion_ids)) for row in rows
    ]
    trainer.set_policy(None)
    on_policy = trainer.forward_backward(exact, "policy_gradient", key="a")
    assert on_policy.sums["ratio_sum"] == pytest.approx(on_policy.tokens, rel=1e-5)
    assert on_policy.sums["logprob_delta_max"] < 1e-5
    trainer.optim_step(learning_rate=3e-2, key="s")
    off_policy = trainer.forward_backward(exact, "policy_gradient", key="b")
    assert off_policy.sums["ratio_sum"] > 1.05 * off_policy.tokens
    assert off_policy.sums["logprob_delta_max"] > 1e-2
    assert off_policy.sums["k3_sum"] > 0


def test_a_repeated_key_changes_nothing(model):
    trainer = make_trainer(model)
    rows = make_rows()
    first = trainer.forward_backward(rows, "policy_gradient", key="a")
    gradient = gradients(trainer)
    again = trainer.forward_backward(rows, "policy_gradient", key="a")
    assert again == first
    assert_same(gradients(trainer), gradient, atol=0)
    step = trainer.optim_step(learning_rate=1e-2, key="s")
    after = trainer.adapter_state()
    assert trainer.optim_step(learning_rate=1e-2, key="s") == step
    assert_same(trainer.adapter_state(), after, atol=0)
    assert trainer.step == 1 and step["step"] == 1
    with pytest.raises(Conflict, match="another call"):
        trainer.forward_backward(rows[:2], "policy_gradient", key="a")
    with pytest.raises(Conflict, match="another call"):
        trainer.optim_step(learning_rate=1.0, key="a")


def test_an_old_key_is_refused_rather_than_run_again(model):
    trainer = make_trainer(model)
    rows = make_rows(1, weights=(1.0,), completion_ids=(5,), advantages=(1.0,), logprobs=(-3.0,))
    for index in range(30):
        trainer.forward_backward(rows, "cross_entropy", key=f"k{index}")
    gradient = gradients(trainer)
    with pytest.raises(Conflict, match="long ago"):
        trainer.forward_backward(rows, "cross_entropy", key="k0")
    assert_same(gradients(trainer), gradient, atol=0)


def test_a_step_needs_a_backward_before_it(model):
    trainer = make_trainer(model)
    with pytest.raises(Conflict, match="forward_backward first"):
        trainer.optim_step(learning_rate=1e-2, key="s")
    trainer.forward_backward(make_rows(), "cross_entropy", key="a")
    trainer.optim_step(learning_rate=1e-2, key="s")
    with pytest.raises(Conflict):
        trainer.optim_step(learning_rate=1e-2, key="s2")


def test_a_failed_call_leaves_everything_as_it_was(model):
    calls = []

    def fail_late():
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("interrupted")

    pieces = len(micro_batches(make_rows(), 1))
    assert pieces >= 4
    trainer = make_trainer(model, micro_batch_tokens=1, yield_hook=fail_late)
    trainer.forward_backward(make_rows(1), "cross_entropy", key="a")
    gradient = gradients(trainer)
    with pytest.raises(RuntimeError, match="interrupted"):
        trainer.forward_backward(make_rows(), "cross_entropy", key="b")
    assert_same(gradients(trainer), gradient, atol=0)
    result = trainer.forward_backward(make_rows(), "cross_entropy", key="b")
    assert result.tokens > 0
    assert len(calls) == 3 + pieces - 1


def test_the_clip_bounds_the_step_and_reports_the_whole_norm(model):
    trainer = make_trainer(model, grad_clip=0.5)
    trainer.forward_backward(make_rows(), "cross_entropy", key="a")
    norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients(trainer).values())).item()
    assert trainer.optim_step(learning_rate=0.0, key="s")["grad_norm"] == pytest.approx(norm, rel=1e-5)
    with pytest.raises(EngineError, match="learning rate"):
        trainer.optim_step(learning_rate=float("nan"), key="t")


def _refused(row, loss, error, model, match):
    trainer = make_trainer(model)
    with pytest.raises(error, match=match):
        trainer.forward_backward([row], loss, key="a")
    assert all(gradient.abs().max() == 0 for gradient in gradients(trainer).values())


def test_rows_that_cannot_be_trained_on_are_refused_with_a_reason(model):
    row = make_rows(1)[0]
    tokens = len(row.completion_ids)
    pg, distill, cloning = "policy_gradient", "distill", "cross_entropy"
    _refused(replace(row, logprobs=(None,) * tokens), pg, RequestError, model, "sampler's logprob")
    _refused(replace(row, logprobs=None), pg, RequestError, model, "sampler's logprob")
    _refused(replace(row, advantages=None), pg, RequestError, model, "advantage")
    _refused(replace(row, teacher_prompt_ids=None), distill, RequestError, model, "teacher_prompt_ids")
    _refused(replace(row, weights=(float("nan"),) * tokens), cloning, RequestError, model, "not finite")
    _refused(replace(row, temperature=0.0), cloning, RequestError, model, "temperature")
    _refused(replace(row, prompt_ids=(259,)), cloning, RequestError, model, "vocabulary")
    _refused(replace(row, prompt_ids=(1,) * 600), cloning, ContextOverflow, model, "never cut")
    _refused(replace(row, teacher_prompt_ids=(1,) * 600), distill, ContextOverflow, model, "never cut")
    _refused(row, "dpo", Unsupported, model, "dpo")
    with pytest.raises(RequestError, match="twice"):
        make_trainer(model).forward_backward([row, row], cloning, key="a")


def test_l15_the_teacher_sees_its_whole_prompt_over_the_same_completion(model):
    """The divergence equals one computed by hand from two plain forwards (L15, H12)."""
    row = replace(make_rows(1)[0], weights=(1.0,) * len(make_rows(1)[0].completion_ids))
    longer = replace(row, row_id="longer", teacher_prompt_ids=(9,) * 300 + row.prompt_ids)
    for each in (row, longer):
        trainer = make_trainer(model)
        found = trainer.forward_backward([each], "distill", key="a").sums["divergence_sum"]
        distributions = []
        for prompt in (each.prompt_ids, each.teacher_prompt_ids):
            logits = model(input_ids=torch.tensor([[*prompt, *each.completion_ids]])).logits[0, len(prompt) - 1 : -1]
            distributions.append(torch.log_softmax(logits / each.temperature, -1))
        student, teacher = distributions
        assert found == pytest.approx((student.exp() * (student - teacher)).sum().item(), rel=1e-4)


def test_contrast_takes_out_what_any_remark_changes(model):
    """q = untold + c (told - other), by hand; rows with and without `other` mix in a batch."""
    trainer = make_trainer(model, distill=DistillSettings(contrast=2.5))
    first, second = make_rows(2)
    rows = [replace(first, contrast_prompt_ids=(7, 8, *first.prompt_ids)), second]
    found = trainer.forward_backward(rows, "distill", key="a").sums["divergence_sum"]

    def logprobs(row, prompt):
        logits = model(input_ids=torch.tensor([[*prompt, *row.completion_ids]])).logits[0, len(prompt) - 1 : -1]
        return torch.log_softmax(logits, -1)[torch.tensor(row.weights) != 0]

    expected = 0.0
    for row in rows:
        untold, told = logprobs(row, row.prompt_ids), logprobs(row, row.teacher_prompt_ids)
        other = logprobs(row, row.contrast_prompt_ids or row.prompt_ids)
        target = torch.log_softmax(untold + 2.5 * (told - other), -1)
        expected += (untold.exp() * (untold - target)).sum().item()
    assert found == pytest.approx(expected, rel=1e-4)


def test_what_was_written_is_cloned_and_the_rest_stays_but_for_where_it_would_have_ended(model):
    """One row by hand: the frozen policy's distributions with the end's mass on the first written token."""
    trainer = make_trainer(model)
    (first,) = make_rows(1)
    body, added = (11, 12, 13), (20, 21, 3)
    row = Datum(
        row_id="carried",
        prompt_ids=first.prompt_ids,
        completion_ids=(*body, *added),
        weights=(0.5,) * 6,
        teacher_prompt_ids=first.prompt_ids,
        written=(False,) * 3 + (True,) * 3,
        redirect=((3,), 20),
    )
    warm(trainer)
    trainer.freeze_teacher()
    trainer.set_reference(None)
    ids = torch.tensor([[*row.prompt_ids, *row.completion_ids]])
    hidden = trainer.policy.hidden(layout_of(pairs_of([row])), "teacher")
    frozen = torch.log_softmax(trainer.policy.head(hidden, "teacher"), -1)
    assert ids.shape[1] - len(row.prompt_ids) == len(frozen)
    target = frozen.exp()
    target[:, 20] += target[:, 3] * (1 - 1e-4)
    target[:, 3] *= 1e-4
    expected = 0.5 * (frozen[:3].exp() * (frozen[:3] - target[:3].log())).sum()
    expected -= 0.5 * sum(frozen[3 + place, token] for place, token in enumerate(added))
    found = trainer.forward_backward([row], "distill", key="a")
    assert found.loss_sum == pytest.approx(expected.item(), rel=1e-4)
    assert found.sums["kl_sum"] > 0  # against the reference, whatever the target


def test_rows_can_be_held_to_the_reference_instead_of_the_teacher(model):
    trainer = make_trainer(model)
    rows = [replace(row, teacher_prompt_ids=row.prompt_ids, against="reference") for row in make_rows(2)]
    trainer.set_reference(None)
    warm(trainer)
    trainer.freeze_teacher()
    assert trainer.forward_backward(rows, "distill", key="a").sums["divergence_sum"] > 0.1
    own = [replace(row, against="teacher") for row in rows]
    assert trainer.forward_backward(own, "distill", key="b").sums["divergence_sum"] == pytest.approx(0, abs=1e-4)
    with pytest.raises(RequestError, match="frozen teachers"):
        trainer.forward_backward([rows[0], own[1]], "distill", key="c")


def test_the_teacher_is_frozen_until_it_is_set_again(model):
    trainer = make_trainer(model)
    rows = [replace(row, teacher_prompt_ids=row.prompt_ids) for row in make_rows()]
    assert trainer.forward_backward(rows, "distill", key="a").sums["divergence_sum"] == pytest.approx(0, abs=1e-4)
    warm(trainer)
    assert trainer.forward_backward(rows, "distill", key="b").sums["divergence_sum"] > 0.1
    trainer.freeze_teacher()
    assert trainer.forward_backward(rows, "distill", key="c").sums["divergence_sum"] == pytest.approx(0, abs=1e-4)
    warm(trainer, key="more")
    moved = trainer.forward_backward(rows, "distill", key="d").sums["divergence_sum"]
    assert moved > 0.1
    trainer.set_teacher(None)
    assert trainer.forward_backward(rows, "distill", key="e").sums["divergence_sum"] != pytest.approx(moved, rel=1e-3)


@pytest.mark.parametrize("divergence", ["reverse_kl", "forward_kl", "jsd"])
@pytest.mark.parametrize("top_k", [0, 20])
def test_distillation_draws_the_student_to_the_teacher(divergence, top_k, model):
    trainer = make_trainer(model, distill=DistillSettings(divergence=divergence, top_k=top_k, clip=3.0))
    rows = [replace(row, weights=(0.05,) * len(row.completion_ids)) for row in make_rows(3)]
    values = []
    for index in range(12):
        values.append(trainer.forward_backward(rows, "distill", key=f"f{index}").sums["divergence_sum"])
        trainer.optim_step(learning_rate=1e-2, key=f"s{index}")
    assert values[-1] < 0.6 * values[0]


def test_the_kl_anchor_is_exact_and_pulls_back(model):
    trainer = make_trainer(model)
    trainer.set_reference(None)
    rows = make_rows(3)
    assert trainer.forward_backward(rows, "cross_entropy", key="a").sums["kl_sum"] == pytest.approx(0, abs=1e-5)
    warm(trainer)
    moved = trainer.forward_backward(rows, "cross_entropy", key="b").sums["kl_sum"]
    assert moved > 0.1
    quiet = [replace(row, advantages=(0.0,) * len(row.completion_ids)) for row in rows]
    trainer.configure_distill(DistillSettings(kl_coef=1.0))
    trainer.set_reference(None)
    values = []
    trainer.optim_step(learning_rate=0.0, key="clear")
    for index in range(10):
        values.append(trainer.forward_backward(quiet, "policy_gradient", key=f"f{index}").sums["kl_sum"])
        trainer.optim_step(learning_rate=5e-3, key=f"s{index}")
    assert values[-1] < 0.5 * values[0]


def test_training_goes_on_from_a_published_adapter(model, tmp_path):
    trainer = make_trainer(model)
    warm(trainer)
    digest = trainer.publish(tmp_path / "v1")
    other = make_trainer(model)
    other.set_policy(tmp_path / "v1", digest=digest)
    assert_same(other.adapter_state(), trainer.adapter_state(), atol=0)
    other.set_reference(tmp_path / "v1", digest=digest)
    other.set_teacher(tmp_path / "v1")
    rows = [replace(row, teacher_prompt_ids=row.prompt_ids) for row in make_rows()]
    sums = other.forward_backward(rows, "distill", key="a").sums
    assert sums["kl_sum"] == pytest.approx(0, abs=1e-4) and sums["divergence_sum"] == pytest.approx(0, abs=1e-4)
    unlike = EmbeddedTrainer(model, lora=LoraSettings(rank=8, alpha=8))
    with pytest.raises(Unsupported, match="rank"):
        unlike.set_policy(tmp_path / "v1")
    with pytest.raises(CorruptArtifact):
        other.set_policy(tmp_path / "v1", digest="0" * 64)


def test_the_base_and_the_frozen_adapters_never_move(model):
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    trainer = make_trainer(model)
    warm(trainer)
    trainer.freeze_teacher()
    trainer.set_reference(None)
    frozen = trainer.policy.state("teacher")
    for index in range(3):
        trainer.forward_backward(make_rows(), "distill", key=f"f{index}")
        trainer.optim_step(learning_rate=1e-2, key=f"s{index}")
    assert_same(trainer.policy.state("teacher"), frozen, atol=0)
    for name, tensor in model.named_parameters():
        assert torch.equal(tensor, before[name])


def test_capabilities(model):
    capabilities = make_trainer(model).capabilities
    assert capabilities.losses == set(LOSSES)
    assert capabilities.gradient_clip and capabilities.teacher_prompts
