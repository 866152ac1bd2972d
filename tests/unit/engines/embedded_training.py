"""Rows and trainers for the tests of the embedded trainer."""

import random

from practicum.engines.embedded.settings import LoraSettings, TrainerSettings
from practicum.engines.embedded.trainer import EmbeddedTrainer
from practicum.types.training import Datum

LORA = LoraSettings(rank=4, alpha=8)
LOSSES = ["cross_entropy", "policy_gradient", "distill"]


def make_trainer(model, **settings):
    hook = settings.pop("yield_hook", None)
    return EmbeddedTrainer(model, lora=LORA, settings=TrainerSettings(**settings), yield_hook=hook, base_name="tiny")


def make_rows(count=6, seed=0, **overrides):
    chance = random.Random(seed)
    rows = []
    for index in range(count):
        prompt = tuple(chance.randrange(256) for _ in range(chance.randrange(1, 30)))
        completion = tuple(chance.randrange(256) for _ in range(chance.randrange(1, 25)))
        values = {
            "row_id": f"row{index}",
            "prompt_ids": prompt,
            "completion_ids": completion,
            "weights": tuple(chance.choice([0.0, 0.5, 1.0]) for _ in completion),
            "advantages": tuple(chance.uniform(-1, 1) for _ in completion),
            "logprobs": tuple(chance.uniform(-6, -3) for _ in completion),
            "teacher_prompt_ids": tuple(chance.randrange(256) for _ in range(40)) + prompt,
            "temperature": chance.choice([1.0, 0.7]),
        }
        rows.append(Datum(**{**values, **overrides}))
    return rows


def warm(trainer, key="warm"):
    """One step, so that B is not zero and every tensor has a gradient."""
    trainer.forward_backward(make_rows(3, seed=99), "cross_entropy", key=key)
    trainer.optim_step(learning_rate=1e-2, key=f"{key}-step")
