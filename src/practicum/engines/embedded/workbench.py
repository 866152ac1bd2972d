"""The embedded engine as a learning run uses it: a trainer, and a local policy that follows its weights.

Sampler and trainer share the base's tensors, which nobody writes to; the policy in training is merged into a version of
its own whenever `refresh` is called, and the loop compares both sides' logprobs on fresh tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from practicum.config import LearnConfig, ModelConfig
from practicum.engines.embedded import models
from practicum.engines.embedded.sampler import EmbeddedSampler
from practicum.engines.embedded.scoring import score
from practicum.engines.embedded.settings import DistillSettings, LoraSettings, SamplerSettings, TrainerSettings
from practicum.engines.embedded.threads import apply_threads
from practicum.engines.embedded.trainer import EmbeddedTrainer
from practicum.errors import EngineError
from practicum.types.local import STUDENT, Completion, ScoreRequest
from practicum.types.policies import PolicyVersion
from practicum.types.tokens import SampleRequest

_PIECE = 48
# The weights of a step, those before them, and `STUDENT`; one that is asked for again is loaded again.
_VERSIONS = 3


class LocalEngine:
    """`types.local.LocalPolicy` over an embedded sampler: batches in, whole results out."""

    def __init__(self, sampler: EmbeddedSampler) -> None:
        self.sampler = sampler

    def generate(
        self, requests: Sequence[SampleRequest], *, progress: Callable[[int], None] | None = None
    ) -> list[Completion]:
        """Completions in order. Raises EngineError if one of them failed."""
        results: list[Completion] = []
        for start in range(0, len(requests), _PIECE):
            for raw in self.sampler.generate(requests[start : start + _PIECE]):
                known = tuple(value for value in raw.logprobs if value is not None)
                if raw.error is not None or len(known) != len(raw.ids):
                    raise EngineError(f"Sampling {raw.request_id} failed: {raw.error or 'a logprob is missing'}.")
                results.append(
                    Completion(
                        request_id=raw.request_id,
                        ids=raw.ids,
                        logprobs=known,
                        version=raw.version,
                        finish_reason=raw.finish_reason,
                    )
                )
            if progress is not None:
                progress(len(results))
        return results

    def score(
        self, requests: Sequence[ScoreRequest], *, progress: Callable[[int], None] | None = None
    ) -> list[tuple[float, ...]]:
        """Raw tempered logprobs [T] for each request, in order."""
        found: dict[int, tuple[float, ...]] = {}
        for version in sorted({request.version for request in requests}):
            chosen = [index for index, request in enumerate(requests) if request.version == version]
            served = self.sampler.weights.acquire(version)
            try:
                for part in score(served.model, [requests[index] for index in chosen]):
                    found.update({chosen[place]: values for place, values in part.items()})
                    if progress is not None:
                        progress(len(found))
            finally:
                self.sampler.weights.release(served)
        return [found[index] for index in range(len(requests))]


class EmbeddedWorkbench:
    """Satisfies `live.workbench.Workbench`. One caller at a time.

    `steps_ahead`: the weights of so many further steps are sampled from at the same time.
    """

    def __init__(self, folder: Path, model: ModelConfig, learn: LearnConfig, *, steps_ahead: int = 0) -> None:
        apply_threads(model.threads)
        loaded, _ = models.load(folder)
        self._sampler = EmbeddedSampler(
            loaded,
            settings=SamplerSettings(
                threads=model.threads,
                max_slots=_PIECE,
                max_waiting=_PIECE,
                max_versions=_VERSIONS + steps_ahead,
            ),
        )
        self.policy = LocalEngine(self._sampler)
        self._distill = DistillSettings(
            divergence=learn.divergence,
            top_k=learn.top_k,
            clip=learn.divergence_clip,
            contrast=learn.contrast,
            plausibility=learn.plausibility,
            kl_coef=learn.kl_coef,
        )
        self.trainer = EmbeddedTrainer(
            loaded,
            lora=LoraSettings(rank=learn.rank, alpha=learn.alpha, seed=learn.seed),
            settings=TrainerSettings(
                threads=model.threads,
                micro_batch_tokens=learn.microbatch_tokens,
                betas=(0.9, 0.99),
                distill=self._distill,
            ),
            base_name=model.id,
        )

    @property
    def sampler(self) -> EmbeddedSampler:
        """The sampler itself, for a gateway in this process."""
        return self._sampler

    def start_from(self, version: PolicyVersion) -> None:
        """Put the trainer, its teacher and its reference on a version."""
        adapter = Path(version.adapter_path) if version.adapter_path is not None else None
        self.trainer.set_policy(adapter)
        self.trainer.set_teacher(adapter)
        self.trainer.set_reference(adapter)

    def serve(self, version: PolicyVersion) -> None:
        """Make a version servable. Raises CorruptArtifact."""
        adapter = Path(version.adapter_path) if version.adapter_path is not None else None
        if version.version not in self._sampler.weights.versions:
            self._sampler.weights.load(version.version, adapter, version.digest if adapter else "")

    def advance(self, old: int, new: PolicyVersion) -> None:
        """Let rollouts that began under version `old` go on under `new`, token by token. Raises CorruptArtifact."""
        self.serve(new)
        self._sampler.move(old, new.version)

    def stay(self) -> None:
        """Sample under the version that is asked for again, whatever was advanced."""
        self._sampler.stay()

    def configure_distill(self, changed: Mapping[str, Any]) -> None:
        """Set what the trainer's `distill` loss is; what is not named stays."""
        self._distill = replace(self._distill, **changed)
        self.trainer.configure_distill(self._distill)

    def refresh(self) -> None:
        """Bring `STUDENT` to the trainer's current weights."""
        self._sampler.put(STUDENT, self.trainer.adapter_state(), self.trainer.scaling)

    def close(self) -> None:
        """Stop the engine's thread."""
        self._sampler.close()
