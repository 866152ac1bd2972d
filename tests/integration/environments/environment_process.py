"""A service with an environment that left a process behind and hangs; it writes down all process ids and waits."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psutil
from tests.integration.environments.environment_world import call, rollout_processes, world
from tests.integration.environments.ledger import LEFT, Ledger
from tests.integration.harnesses.rollout_world import until

from practicum.engines.scripted import Turn
from practicum.environments import multi_turn
from practicum.store import open_store


async def main(home: Path) -> None:
    def policy(turn: Turn) -> object:
        return [call("leave"), call("hang", on=True)][min(turn.assistant_turns, 1)]

    with open_store(home / "practicum.db") as store:
        async with world(home, store, policy) as made:  # type: ignore[arg-type]
            await made.service.submit(multi_turn("l", Ledger, {"rows": [1]}, max_tokens=256, tool_timeout_s=600))
            await until(lambda: any(LEFT in one.cmdline() for one in rollout_processes()))
            below = psutil.Process().children(recursive=True)
            (home / "writing").write_text("\n".join(str(one.pid) for one in below))
            (home / "writing").rename(home / "pids")
            await asyncio.Event().wait()


asyncio.run(main(Path(sys.argv[1])))
