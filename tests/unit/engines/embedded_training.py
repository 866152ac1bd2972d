"""Rows and trainers for the tests of the embedded trainer, and what they are measured against.

`reference` is the plain way: transformers' module (peft's layers in it for an adapter) in double precision, one row at
a time, all of its logits, and autograd through the losses' own functions.
"""

import copy
import random
import warnings

import torch
from peft import LoraConfig, get_peft_model

from practicum.algorithms import losses, surrogates
from practicum.engines.embedded.adapter import linear_modules
from practicum.engines.embedded.settings import LoraSettings, TrainerSettings
from practicum.engines.embedded.trainer import EmbeddedTrainer
from practicum.types.training import Datum, PolicyGradient

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


def gradients(trainer):
    """Zero where nothing was accumulated."""
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in trainer.policy.parameters().items()
    }


def reference(model, state, rows, loss, *, kl_coef=0.0):
    """(loss, {row: logprobs}, {tensor: gradient}) of a policy's tensors; teacher and reference are `model` itself."""
    if any(".lora_A." in name for name in state):
        config = LoraConfig(r=LORA.rank, lora_alpha=LORA.alpha, target_modules=sorted(linear_modules(model)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers a question by its old name
            policy = get_peft_model(copy.deepcopy(model), config).double()
        named = {name.replace(".default", ""): tensor for name, tensor in policy.named_parameters()}
    else:
        policy = copy.deepcopy(model).double().requires_grad_(True)
        named = dict(policy.named_parameters())
    with torch.no_grad():
        for name, tensor in state.items():
            named[name].copy_(tensor)
    base = copy.deepcopy(model).double()
    total, logprobs = torch.zeros(()), {}
    for row in rows:
        logits = _row_logits(policy, row.prompt_ids, row)
        logp = losses.token_logprobs(logits / row.temperature, torch.tensor(row.completion_ids))
        logprobs[row.row_id] = logp.tolist()
        total = total + _row_loss(base, row, loss, logits, logp, kl_coef)
    total.backward()
    grads = {name: torch.zeros(()) if named[name].grad is None else named[name].grad.float() for name in state}
    return float(total.detach()), logprobs, grads


def _row_loss(model, row, loss, logits, logp, kl_coef):
    weights, written = torch.tensor(row.weights), torch.tensor(row.written or (False,) * len(row.weights))
    if loss == "cross_entropy":
        value = losses.cross_entropy(logp, weights)
    elif loss == "policy_gradient":
        mu = torch.tensor([0.0 if each is None else each for each in row.logprobs])
        found = surrogates.coefficients(logp, mu, torch.tensor(row.advantages), weights, PolicyGradient())
        value = surrogates.policy_gradient(logp, found)
    else:
        with torch.no_grad():
            teacher = _row_logits(model, row.teacher_prompt_ids, row)
        value, _ = losses.distill(logits, teacher, torch.where(written, 0.0, weights))
        value = value + losses.cross_entropy(
            losses.token_logprobs(logits, torch.tensor(row.completion_ids)), torch.where(written, weights, 0.0)
        )
    if kl_coef:
        with torch.no_grad():
            anchor = _row_logits(model, row.prompt_ids, row)
        value = value + kl_coef * (weights * losses.full_kl(logits / row.temperature, anchor / row.temperature)).sum()
    return value


def _row_logits(model, prompt, row):
    ids = torch.tensor([[*prompt, *row.completion_ids]])
    return model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]


def forked_rows():
    """Two groups that share a system prompt; one row a group goes on where another forked, twice over."""
    chance = random.Random(3)

    def ids(count):
        return tuple(chance.randrange(256) for _ in range(count))

    system, first, second = ids(20), ids(15), ids(9)
    stem, deep = ids(12), ids(11)
    texts = [
        (system + first, ids(7)),
        (system + first, ids(5)),
        (system + first, stem + ids(4)),
        (system + first, stem + deep + ids(3)),
        (system + first, stem + deep + ids(6)),
        (system + first, stem + deep),
        (system + first + stem, ids(2)),
        (system + second, ids(8)),
        (system + second, ids(8)),
        (ids(3), ids(4)),
    ]
    order = list(range(len(texts)))
    chance.shuffle(order)
    return [_forked(chance, index, *texts[index]) for index in order]


def _forked(chance, index, prompt, completion):
    """A row with environment tokens (weight 0) in the middle of its completion."""
    weights = tuple(0.0 if place % 5 == 3 else chance.choice([0.5, 1.0]) for place in range(len(completion)))
    return Datum(
        row_id=f"f{index}",
        prompt_ids=prompt,
        completion_ids=completion,
        weights=weights,
        advantages=tuple(chance.uniform(-1, 1) for _ in completion),
        logprobs=tuple(chance.uniform(-6, -3) if weight else None for weight in weights),
        teacher_prompt_ids=prompt[:5] + prompt,
        temperature=chance.choice([1.0, 0.7]),
    )
