"""The Trainer seam over torch on this machine: sums in, gradients accumulated, one optimizer.

Every call carries a key and is atomic: a repeated key returns what the first call returned and changes nothing; a call
that fails leaves gradients, weights and optimizer as they were. Order is strict: an optimizer step needs a backward
before it. How rows are split into micro-batches changes memory, not the result.
It must not know how a batch was made, nor when to train.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import torch

from practicum.engines.embedded import models
from practicum.engines.embedded.batches import check_rows
from practicum.engines.embedded.checkpoint import read_checkpoint, write_checkpoint
from practicum.engines.embedded.layout import micro_batches
from practicum.engines.embedded.passes import micro_batch
from practicum.engines.embedded.policies import placed, policy_of
from practicum.engines.embedded.policy import Sibling
from practicum.engines.embedded.settings import DistillSettings, LoraSettings, TrainerSettings
from practicum.engines.embedded.threads import apply_threads
from practicum.errors import Conflict, EngineError, Unsupported
from practicum.types.training import Capabilities, Checkpoint, Datum, ForwardBackward, LossName, PolicyGradient

# Results of this many calls can be returned again; of older ones only the key is known, and repeating it is refused.
_RESULTS_KEPT = 16
_KEYS_KEPT = 4096
_FROZEN: tuple[Sibling, ...] = ("teacher", "reference")


class EmbeddedTrainer:
    """Training of one base model, LoRA or whole. Satisfies `types.seams.Trainer`. Not thread-safe: one caller.

    `yield_hook` is called between micro-batches, where a learner that shares the machine with serving can wait.
    `base_name` goes into what is published, so that others can load it.
    """

    def __init__(
        self,
        model: Any,
        *,
        lora: LoraSettings | None = None,
        settings: TrainerSettings | None = None,
        yield_hook: Callable[[], None] | None = None,
        base_name: str = models.DEFAULT_MODEL,
    ) -> None:
        self._settings = settings or TrainerSettings()
        self._lora = lora or LoraSettings()
        self._yield = yield_hook
        self._base_name = base_name
        apply_threads(self._settings.threads)
        model = placed(model, self._settings)
        self._device = next(model.parameters()).device
        self._model = model
        self._context_length = models.context_length(model.config)
        self._vocabulary = int(model.get_output_embeddings().weight.shape[0])
        self._base_digest = _fingerprint(model)
        self.policy = policy_of(model, self._lora, whole=self._settings.weights == "full")
        self._measures_kl = self._settings.distill.kl_coef > 0
        self._begin()

    def _begin(self) -> None:
        parameters = list(self.policy.parameters().values())
        for parameter in parameters:
            parameter.grad = None
        self._optimizer = torch.optim.AdamW(
            parameters,
            lr=0.0,
            betas=self._settings.betas,
            eps=self._settings.eps,
            weight_decay=self._settings.weight_decay,
            fused=True,
        )
        self._step = 0
        self._pending_tokens = 0
        self._done: OrderedDict[str, tuple[str, Any]] = OrderedDict()

    @property
    def capabilities(self) -> Capabilities:
        """All three losses, gradient clipping, teacher prompts."""
        return Capabilities(losses=frozenset(get_args(LossName)), gradient_clip=True, teacher_prompts=True)

    @property
    def step(self) -> int:
        """Optimizer steps since this policy was set."""
        return self._step

    @property
    def scaling(self) -> float:
        """Factor on B A: alpha / rank."""
        return self._lora.scaling

    def adapter_state(self) -> dict[str, torch.Tensor]:
        """Copies of the policy's tensors, an adapter's or a whole model's, for `PolicyWeights.put`."""
        state = self.policy.state()
        assert state is not None
        return state

    def configure_distill(self, settings: DistillSettings) -> None:
        """Change the divergence and the KL anchor's weight from the next call on."""
        self._settings = replace(self._settings, distill=settings)
        self._measures_kl = self._measures_kl or settings.kl_coef > 0

    def set_policy(self, adapter_path: Path | None, *, digest: str | None = None) -> None:
        """Start training from a published folder (None: from the base), with a fresh optimizer and no pending gradient.

        Raises: CorruptArtifact; Unsupported if its rank or scaling, or what it trained, differs from this trainer's.
        """
        self.policy.put("policy", self._read(adapter_path, digest))
        self._begin()

    def set_teacher(self, adapter_path: Path | None, *, digest: str | None = None) -> None:
        """Freeze the teacher of `distill` rows: an adapter from disk, or None for the model without adapter."""
        self.policy.put("teacher", self._read(adapter_path, digest))

    def freeze_teacher(self) -> None:
        """Freeze the policy as it is now as the teacher."""
        self.policy.put("teacher", self.policy.state())

    def set_reference(self, adapter_path: Path | None, *, digest: str | None = None) -> None:
        """Anchor and measure KL against an adapter (None: the base). From here on every result has `kl_sum`."""
        self.policy.put("reference", self._read(adapter_path, digest))
        self._measures_kl = True

    def forward_backward(
        self,
        batch: Sequence[Datum],
        loss: LossName,
        *,
        key: str,
        policy_gradient: PolicyGradient = PolicyGradient(),
    ) -> ForwardBackward:
        """Accumulate gradients of the summed loss over tokens of non-zero weight.

        `sums` has, over those tokens: `entropy_sum`, `weight_sum`, `logprob_delta_sum`, `_max` and `_tokens` (against
        the sampler, where known), `kl_sum` (exact KL to the reference, once there is one), `divergence_sum` (distill),
        the figures of `surrogates.Coefficients` as `masked_sum` and so on (policy_gradient).

        Raises: Unsupported, RequestError, ContextOverflow, EngineError for a value that is not finite.
        """
        if loss not in self.capabilities.losses:
            raise Unsupported(f"the embedded trainer has no loss {loss!r}; it has {sorted(self.capabilities.losses)}.")
        content = f"{loss}:{_digest_of([asdict(policy_gradient), *(asdict(row) for row in batch)])}"
        if (known := self._recall(key, content)) is not None:
            return ForwardBackward(
                **{**known, "logprobs": {row: tuple(values) for row, values in known["logprobs"].items()}}
            )
        check_rows(
            batch,
            loss,
            context_length=self._context_length,
            vocabulary=self._vocabulary,
            policy_gradient=policy_gradient,
        )
        parameters = list(self.policy.parameters().values())
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:  # this call's gradients get tensors of their own, and join the others at its end
            parameter.grad = None
        try:
            result = self._accumulate(batch, loss, policy_gradient)
            if not all(bool(torch.isfinite(gradient).all()) for gradient in _gradients(parameters)):
                raise EngineError("the gradient is not finite; this batch was left out.")
        except BaseException:
            for parameter, gradient in zip(parameters, before, strict=True):
                parameter.grad = gradient
            raise
        for parameter, gradient in zip(parameters, before, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)
        self._pending_tokens += result.tokens
        self._remember(
            key, content, {name: getattr(result, name) for name in ("loss_sum", "tokens", "sums", "logprobs")}
        )
        return result

    def optim_step(self, *, learning_rate: float, key: str) -> dict[str, float]:
        """Clip, apply and clear the accumulated gradients; returns `grad_norm` (before the clip) and `step`.

        Raises: Conflict when there is no gradient to apply: nothing was accumulated, or all of it is zero.
        """
        content = f"optim_step:{learning_rate!r}"
        if (known := self._recall(key, content)) is not None:
            return dict(known)
        if not 0 <= learning_rate < math.inf:
            raise EngineError(f"the learning rate is {learning_rate}; it must be finite and 0 or more.")
        gradients = _gradients(self.policy.parameters().values())
        norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients]
        norm = float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0
        if not self._pending_tokens or norm == 0:
            raise Conflict(
                "there is no gradient to apply: no token of non-zero weight was accumulated since the last step, "
                "or every one of them gave zero.",
                hint="Run forward_backward first, and skip the step of a batch without signal.",
            )
        clip = self._settings.grad_clip
        if clip is not None and norm > clip:
            for gradient in gradients:
                gradient.mul_(clip / norm)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.policy.changed()
        self._step += 1
        self._pending_tokens = 0
        result = {"grad_norm": norm, "step": float(self._step)}
        self._remember(key, content, result)
        return dict(result)

    def save(self, folder: Path) -> Checkpoint:
        """Write a resumable checkpoint, atomically: adapters, optimizer, pending gradient, RNG, keys, step."""
        tensors: dict[str, torch.Tensor] = {"rng": torch.get_rng_state()}
        for adapter in ("policy", *_FROZEN):
            for name, tensor in (self.policy.state(adapter) or {}).items():
                tensors[f"{adapter}/{name}"] = tensor
        for name, parameter in self.policy.parameters().items():
            if parameter.grad is not None:
                tensors[f"grad/{name}"] = parameter.grad
            for part, value in self._optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{part}/{name}"] = value
        state = {
            "base": self._base_digest,
            "lora": asdict(self._lora),
            "weights": self._settings.weights,
            "step": self._step,
            "pending_tokens": self._pending_tokens,
            "measures_kl": self._measures_kl,
            "done": [[key, content, result] for key, (content, result) in self._done.items()],
        }
        digest = write_checkpoint(folder, tensors, state)
        return Checkpoint(path=str(folder), digest=digest, step=self._step)

    def load(self, folder: Path) -> None:
        """Restore a checkpoint whole; what follows is bit for bit what would have followed the save.

        Raises: CorruptArtifact, with the trainer as it was; Conflict for another base model or other LoRA settings.
        """
        tensors, state = read_checkpoint(folder)
        mine = (self._base_digest, asdict(self._lora), self._settings.weights)
        if (state["base"], state["lora"], state["weights"]) != mine:
            raise Conflict(
                f"the checkpoint {folder} belongs to another base model or other LoRA settings.",
                hint="Resume with the configuration it was made with.",
            )
        groups: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
        for name, tensor in tensors.items():
            group, _, rest = name.partition("/")
            groups[group][rest] = tensor
        for adapter in ("policy", *_FROZEN):
            if groups.get(adapter):
                self.policy.check(groups[adapter])
        for adapter in ("policy", *_FROZEN):
            self.policy.put(adapter, groups.get(adapter))
        self._begin()
        for name, parameter in self.policy.parameters().items():
            if name in groups["grad"]:
                parameter.grad = groups["grad"][name].to(parameter.device, copy=True)
            moments = {part: groups["optimizer"].get(f"{part}/{name}") for part in ("step", "exp_avg", "exp_avg_sq")}
            if moments["step"] is not None:
                self._optimizer.state[parameter] = {
                    part: value.to(parameter.device, copy=True) for part, value in moments.items() if value is not None
                }
        torch.set_rng_state(groups["rng"][""])
        self._step = state["step"]
        self._pending_tokens = state["pending_tokens"]
        self._measures_kl = state["measures_kl"]
        self._done = OrderedDict((key, (content, result)) for key, content, result in state["done"])

    def publish(self, folder: Path) -> str:
        """Write the policy, as a peft adapter or a whole model, with a card, atomically; returns its digest."""
        return self.policy.publish(folder, base_model=self._base_name)

    def _accumulate(self, batch: Sequence[Datum], loss: LossName, policy_gradient: PolicyGradient) -> ForwardBackward:
        loss_sum, tokens = 0.0, 0
        sums: dict[str, float] = {}
        logprobs: dict[str, tuple[float, ...]] = {}
        for number, rows in enumerate(micro_batches(batch, self._settings.micro_batch_tokens)):
            if number and self._yield is not None:
                self._yield()
            objective = micro_batch(
                self.policy,
                rows,
                loss,
                self._settings,
                policy_gradient=policy_gradient,
                device=self._device,
                measures_kl=self._measures_kl,
            )
            if not math.isfinite(objective.loss_sum):
                raise EngineError(f"the loss of rows {[row.row_id for row in rows]} is not finite; it was left out.")
            loss_sum += objective.loss_sum
            for name, value in objective.sums.items():
                sums[name] = max(sums.get(name, 0.0), value) if name.endswith("_max") else sums.get(name, 0.0) + value
            values = objective.logprobs.tolist()
            for row in rows:
                length = len(row.completion_ids)
                logprobs[row.row_id], values = tuple(values[:length]), values[length:]
                tokens += sum(weight != 0 for weight in row.weights)
        return ForwardBackward(loss_sum=loss_sum, tokens=tokens, sums=sums, logprobs=logprobs)

    def _read(self, path: Path | None, digest: str | None) -> dict[str, torch.Tensor] | None:
        return None if path is None else self.policy.read(path, digest=digest)

    def _recall(self, key: str, content: str) -> Any:
        if key not in self._done:
            return None
        known, result = self._done[key]
        if known != content:
            raise Conflict(f"the key {key!r} was used for another call.", hint="Give every call its own key.")
        if result is None:
            raise Conflict(f"the call with key {key!r} was made long ago; its result is no longer kept.")
        return result

    def _remember(self, key: str, content: str, result: Any) -> None:
        self._done[key] = (content, json.loads(json.dumps(result)))
        for old in list(self._done)[-_RESULTS_KEPT - 1 : -_RESULTS_KEPT]:
            self._done[old] = (self._done[old][0], None)
        while len(self._done) > _KEYS_KEPT:
            self._done.popitem(last=False)


def _gradients(parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _digest_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _fingerprint(model: Any) -> str:
    """SHA-256 over names, shapes and the first values of the base's tensors: tells models apart, cheaply."""
    total = hashlib.sha256()
    for name, tensor in model.named_parameters():
        head = tensor.detach().reshape(-1)[:64].float().cpu().contiguous().numpy().tobytes()
        total.update(f"{name}:{tuple(tensor.shape)}:".encode() + head)
    return total.hexdigest()
