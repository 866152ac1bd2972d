"""The seam to a black-box agent: three calls, `submit`, `status` and `collect`.

An adapter starts a harness that it does not own and may not change, pointed at the model endpoint through the address
and the key of its rollout. What the harness said to the model is on record at the gateway; the adapter only tells how
the run ended. It must not know tokens, graders or training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from practicum.sandboxes.sandbox import Sandbox

HarnessState = Literal["running", "ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where the harness finds its model. `base_url` has no version at its end and names the rollout (`…/s/ROLLOUT`)."""

    base_url: str
    api_key: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessJob:
    """One run of a harness in a prepared sandbox.

    `turn` counts the instructions of a rollout from 0: a later one goes on in the same sandbox, with the harness's own
    way of resuming its last conversation where it has one. `options` belong to the adapter. `index` is the rollout's
    number within its group, from 0.
    """

    rollout_id: str
    task_id: str = ""
    index: int = 0
    instruction: str
    endpoint: Endpoint
    turn: int = 0
    timeout_s: float | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessEnd:
    """How a run ended. `exit_code` is None where there is none: a timeout, a callable, a remote harness.

    `output` is what the harness gave as its answer, `log` the end of what it printed for people.
    """

    exit_code: int | None
    timed_out: bool = False
    output: str = ""
    log: str = ""
    error: str | None = None


class Harness(Protocol):
    """An adapter. One instance serves many runs at once.

    An adapter may have `check(options)`, which raises UsageError for a task's options when the task is submitted;
    `sandbox_on_demand` true where it takes an `OnDemandSandbox`, made when it is first used; and `aclose()`, awaited
    when the service ends.
    """

    @property
    def name(self) -> str:
        """The name that tasks use."""

    async def submit(self, job: HarnessJob, sandbox: Sandbox) -> str:
        """Start the run and return its handle. Raises HarnessError where the harness cannot be started."""

    async def status(self, handle: str) -> HarnessState:
        """Whether the run goes on. Raises NotFound for a handle that is not known."""

    async def collect(self, handle: str) -> HarnessEnd:
        """Wait for the run's end and forget the handle. Cancelling it ends the run and all of its processes."""


@runtime_checkable
class ChecksJobs(Protocol):
    """What an adapter may have beside: it knows before anything is queued that a job cannot be started."""

    def check(self, job: HarnessJob, finds: Callable[[str], bool]) -> None:
        """Raises UsageError naming the option at fault. `finds` tells whether sandboxes have a program; where that is
        not known it says yes. The job's endpoint and rollout are not real yet."""
