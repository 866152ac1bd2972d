"""A process that writes to a store and may be killed; run by the tests beside it.

store_process.py PATH write PREFIX COUNT [POINT NUMBER]   acknowledges each call on stdout; dies at a point
store_process.py PATH bulk PREFIX COUNT                   queues all, then waits
store_process.py PATH open                                opens, creates a run, closes
"""

import os
import signal
import sys
from pathlib import Path

from practicum.store import Store, open_store
from practicum.types.calls import ModelCall


def make_call(call_id: str, status: str = "complete") -> ModelCall:
    return ModelCall(
        call_id=call_id,
        session_id="s",
        principal="p",
        kind="agent",
        status=status,  # type: ignore[arg-type]
        created_at=1.0,
        policy_version=0,
        model="m",
        request={"text": "x" * 200},
    )


def kill_at(point: str, number: int):  # type: ignore[no-untyped-def]
    passed = 0

    def pass_point(name: str) -> None:
        nonlocal passed
        passed += name == point
        if passed == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return pass_point


def write(store: Store, prefix: str, count: int) -> None:
    for number in range(count):
        call_id = f"{prefix}{number}"
        store.put_call(make_call(call_id, "open")).result()
        store.put_call(make_call(call_id)).result()
        print(call_id, flush=True)


def main(path: str, verb: str, *rest: str) -> None:
    with open_store(Path(path)) as store:
        if verb == "open":
            store.create_run(f"run_{os.getpid()}", {}).result()
        elif verb == "bulk":
            for future in [store.put_call(make_call(f"{rest[0]}{number}")) for number in range(int(rest[1]))]:
                future.result()
        else:
            if len(rest) == 4:
                store.crashpoint = kill_at(rest[2], int(rest[3]))
            write(store, rest[0], int(rest[1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
