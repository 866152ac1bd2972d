"""Training every weight: what is published is a model that transformers loads and a sampler serves as a version."""

import pytest
import torch
from embedded_training import LORA, forked_rows, gradients, make_trainer, warm
from transformers import AutoModelForCausalLM

from practicum.engines.embedded.settings import TrainerSettings
from practicum.engines.embedded.trainer import EmbeddedTrainer
from practicum.engines.embedded.weights import PolicyWeights
from practicum.errors import ConfigError, Conflict, CorruptArtifact, Unsupported

IDS = torch.arange(40)[None]


@pytest.fixture
def trained(model):
    trainer = make_trainer(model, weights="full")
    trainer.forward_backward(forked_rows(), "cross_entropy", key="a")
    trainer.optim_step(learning_rate=1e-2, key="s")
    return trainer


def test_a_published_model_is_served_and_loaded(trained, model, tmp_path):
    digest = trained.publish(tmp_path / "v1")
    assert trained.publish(tmp_path / "v1") == digest
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "v1")(input_ids=IDS).logits
    weights = PolicyWeights(model)
    weights.load(1, tmp_path / "v1", digest)
    weights.put(2, trained.adapter_state(), trained.scaling)
    for version in (1, 2):
        served = weights.acquire(version)
        torch.testing.assert_close(served.model(input_ids=IDS).logits, theirs, atol=1e-5, rtol=0)
    assert (model(input_ids=IDS).logits - theirs).abs().max() > 1e-2
    other = make_trainer(model, weights="full")
    other.set_policy(tmp_path / "v1", digest=digest)
    mine, found = trained.adapter_state(), other.adapter_state()
    assert all(torch.equal(mine[name], found[name]) for name in mine)


def test_what_was_served_is_what_training_recomputes(trained, model):
    weights = PolicyWeights(model)
    weights.put(1, trained.adapter_state(), 1.0)
    served = weights.acquire(1).model
    rows = forked_rows()
    found = trained.forward_backward(rows, "cross_entropy", key="b").logprobs
    for row in rows:
        logits = served(input_ids=torch.tensor([[*row.prompt_ids, *row.completion_ids]])).logits[0]
        logp = torch.log_softmax(logits[len(row.prompt_ids) - 1 : -1] / row.temperature, -1)
        expected = logp.gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0].tolist()
        assert found[row.row_id] == pytest.approx(expected, abs=1e-4)


def test_a_published_model_that_does_not_fit_is_refused(trained, model, make_model, tmp_path):
    digest = trained.publish(tmp_path / "v1")
    weights = PolicyWeights(model)
    with pytest.raises(CorruptArtifact, match="digest"):
        weights.load(1, tmp_path / "v1", "0" * 64)
    with pytest.raises(CorruptArtifact, match=r"shape|names"):
        PolicyWeights(make_model(hidden_size=32)).load(1, tmp_path / "v1", digest)
    with pytest.raises(Unsupported, match="whole model"):
        make_trainer(model).set_policy(tmp_path / "v1")
    adapter = make_trainer(model)
    warm(adapter)
    adapter.publish(tmp_path / "adapter")
    with pytest.raises(Unsupported, match="adapter"):
        trained.set_policy(tmp_path / "adapter")
    warm(trained)
    with pytest.raises(Conflict, match="never overwritten"):
        trained.publish(tmp_path / "v1")
    assert weights.versions == (0,)


def test_a_checkpoint_of_the_other_kind_is_refused(trained, model, tmp_path):
    trained.save(tmp_path / "c")
    with pytest.raises(Conflict, match="belongs to another"):
        make_trainer(model).load(tmp_path / "c")


def test_the_base_is_never_written_to(model):
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    trainer = make_trainer(model, weights="full")
    warm(trainer)
    trainer.freeze_teacher()
    trainer.set_reference(None)
    trainer.forward_backward(forked_rows(), "distill", key="a")
    trainer.optim_step(learning_rate=1e-2, key="s")
    trainer.set_policy(None)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.named_parameters())
    assert all(torch.equal(trainer.adapter_state()[name], before[name]) for name in before)


def test_a_base_in_bfloat16_trains_a_float32_adapter(model):
    found = []
    for dtype in ("float32", "bfloat16"):
        trainer = EmbeddedTrainer(model, lora=LORA, settings=TrainerSettings(dtype=dtype))
        warm(trainer)
        result = trainer.forward_backward(forked_rows(), "cross_entropy", key="a")
        gradient = gradients(trainer)
        assert all(each.dtype == torch.float32 for each in gradient.values())
        found.append((result.loss_sum, torch.cat([each.flatten() for each in gradient.values()])))
    (loss, exact), (rough_loss, rough) = found
    assert rough_loss == pytest.approx(loss, rel=0.02)
    assert torch.cosine_similarity(exact, rough, dim=0) > 0.98
    assert next(model.parameters()).dtype == torch.float32
    with pytest.raises(ConfigError, match="rounded away"):
        EmbeddedTrainer(model, settings=TrainerSettings(weights="full", dtype="bfloat16"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused(model):
    with pytest.raises(ConfigError, match="CUDA"):
        EmbeddedTrainer(model, settings=TrainerSettings(device="cuda"))
