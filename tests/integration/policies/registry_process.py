"""A process that registers and promotes an adapter and is killed at the n-th step; run by the test beside it.

registry_process.py HOME NUMBER
"""

import os
import signal
import sys
from pathlib import Path

from practicum.policies import Registry
from practicum.store import open_store
from practicum.types.policies import Decision


def main(home: str, number: str) -> None:
    passed = 0

    def pass_point(name: str) -> None:
        nonlocal passed
        passed += 1
        if passed == int(number):
            print(name, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    with open_store(Path(home) / "practicum.db") as store:
        store.crashpoint = pass_point
        registry = Registry(store, Path(home) / "policies", crashpoint=pass_point)
        candidate = registry.register_candidate(Path(home) / "adapter", 0, "run_1")
        registry.apply_decision(
            Decision(
                decision_id="dec_1",
                version=candidate.version,
                previous=0,
                verdict="promote",
                reason="because",
                actor="test",
                created_at=1.0,
            )
        )
    print("finished", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
