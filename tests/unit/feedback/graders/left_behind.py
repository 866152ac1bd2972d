"""What a rollout left, for graders: a real sandbox after its harness, the answer and one model call."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.feedback.graders import GraderSettings, graders
from practicum.sandboxes.local import LocalProvider
from practicum.sandboxes.sandbox import Sandbox, SandboxSpec
from practicum.types.calls import ModelCall
from practicum.types.outcomes import Outcome

CALL = ModelCall(
    call_id="c",
    session_id="s",
    principal="p",
    kind="agent",
    status="complete",
    created_at=1.0,
    policy_version=3,
    model="m",
    request={"messages": [{"role": "user", "content": "Write hi to out.txt"}]},
    text="done",
    finish_reason="stop",
)


@dataclass(frozen=True, kw_only=True)
class Left:
    sandbox: Sandbox
    exit_code: int | None = 0
    output: str = "I wrote it."
    calls: Sequence[ModelCall] = (CALL,)


@asynccontextmanager
async def left(
    tmp_path: Path, script: str = "echo hi > out.txt", spec: SandboxSpec | None = None
) -> AsyncIterator[Left]:
    async with LocalProvider(tmp_path / "boxes").open(spec or SandboxSpec()) as box:
        await box.run(["sh", "-c", script])
        yield Left(sandbox=box)


async def grade(name: str, evidence: Left, settings: GraderSettings | None = None, **options: Any) -> list[Outcome]:
    return list(await graders(settings or GraderSettings())[name](options).grade(evidence))


def rewards(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    return {outcome.name: outcome.reward for outcome in outcomes}
