"""How long the gateway waits for whom, in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """`ping_s`: silence in a stream after which a comment keeps the connection alive. `stall_s`: without any token from
    the engine while answers wait, it counts as hung. `write_timeout_s`: a caller that does not read for so long is
    gone. `shutdown_s`: running answers get to finish.
    """

    ping_s: float = 10.0
    stall_s: float = 120.0
    write_timeout_s: float = 60.0
    shutdown_s: float = 30.0
