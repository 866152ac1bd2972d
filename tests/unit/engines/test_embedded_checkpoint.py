"""Checkpoints of the trainer: bit-exact resume, and any damage refused."""

import json
import random

import pytest
import torch
from embedded_training import make_rows, make_trainer, warm

from practicum.engines.embedded.settings import LoraSettings
from practicum.engines.embedded.trainer import EmbeddedTrainer
from practicum.errors import Conflict, CorruptArtifact


def _continue(trainer):
    trainer.optim_step(learning_rate=1e-2, key="c0")
    for index in range(2):
        trainer.forward_backward(make_rows(seed=index), "distill", key=f"c-f{index}")
        trainer.optim_step(learning_rate=1e-2, key=f"c-s{index}")
    return trainer.adapter_state()


def test_a_resumed_trainer_is_bit_for_bit_the_same(model, tmp_path):
    """Saved in the middle of an accumulation, with teacher and reference set."""
    trainer = make_trainer(model)
    warm(trainer)
    trainer.freeze_teacher()
    trainer.set_reference(None)
    first = trainer.forward_backward(make_rows(), "distill", key="pending")
    checkpoint = trainer.save(tmp_path / "c")
    assert checkpoint.step == 1 and trainer.save(tmp_path / "c") == checkpoint
    expected = _continue(trainer)

    resumed = make_trainer(model)
    resumed.load(tmp_path / "c")
    assert resumed.forward_backward(make_rows(), "distill", key="pending") == first
    found = _continue(resumed)
    for name in expected:
        assert torch.equal(found[name], expected[name])
    with pytest.raises(Conflict, match="never overwritten"):
        trainer.save(tmp_path / "c")


def test_a_checkpoint_of_something_else_is_refused(model, make_model, tmp_path):
    trainer = make_trainer(model)
    trainer.save(tmp_path / "c")
    with pytest.raises(Conflict, match="another base model"):
        make_trainer(make_model(seed=1)).load(tmp_path / "c")
    with pytest.raises(Conflict, match="LoRA"):
        EmbeddedTrainer(model, lora=LoraSettings(rank=2)).load(tmp_path / "c")


def test_two_hundred_corruptions_are_refused(model, tmp_path):
    trainer = make_trainer(model)
    warm(trainer)
    trainer.save(tmp_path / "c")
    other = make_trainer(model)
    before = other.adapter_state()
    chance = random.Random(0)
    names = ["manifest.json", "state.json", "state.safetensors"]
    for index in range(200):
        path = tmp_path / "c" / names[index % 3]
        content = path.read_bytes()
        kind = chance.choice(["flip", "flip", "flip", "truncate", "append", "remove"])
        position = chance.randrange(len(content))
        if kind == "flip":
            damaged = bytearray(content)
            damaged[position] ^= 1 << chance.randrange(8)
            path.write_bytes(bytes(damaged))
        elif kind == "truncate":
            path.write_bytes(content[:position])
        elif kind == "append":
            path.write_bytes(content + b" ")
        else:
            path.unlink()
        with pytest.raises(CorruptArtifact):
            other.load(tmp_path / "c")
        path.write_bytes(content)
    after = other.adapter_state()
    assert all(torch.equal(after[name], before[name]) for name in before)
    (tmp_path / "c" / "extra").write_text("")
    with pytest.raises(CorruptArtifact):
        other.load(tmp_path / "c")
    (tmp_path / "c" / "extra").unlink()
    other.load(tmp_path / "c")
    assert json.loads((tmp_path / "c" / "state.json").read_text())["step"] == 1
    with pytest.raises(CorruptArtifact):
        other.load(tmp_path / "nothing")
