"""The engine's thread: the only one that runs the scheduler. Everything else hands it jobs and waits.

If the scheduler itself fails (not one sequence in it), every waiter gets an EngineError at once, `healthy` turns False
and stays so, and later jobs are refused with the same cause.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from practicum.engines.embedded.decode import Scheduler
from practicum.engines.embedded.jobs import Generation, Job
from practicum.engines.embedded.threads import apply_threads
from practicum.errors import EngineError

_log = logging.getLogger(__name__)


class EngineThread:
    """Runs a scheduler until closed. Starts with its first job."""

    def __init__(self, scheduler: Scheduler, *, max_pending: int, threads: int = 0) -> None:
        self._scheduler = scheduler
        self._max_pending = max_pending
        self._threads = threads
        self._changed = threading.Condition()
        self._inbox: list[Job] = []
        self._acts: list[tuple[Callable[[Scheduler], int], Future[int]]] = []
        self._pending = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._failure: BaseException | None = None

    @property
    def healthy(self) -> bool:
        """Whether jobs are taken."""
        return self._failure is None and not self._closed

    def submit(self, job: Job, *, bounded: bool = True) -> None:
        """Queue a job. Raises EngineError if the engine failed or closed, or (`bounded`) if the queue is full."""
        with self._changed:
            self._refuse_if_down()
            if bounded and self._pending >= self._max_pending:
                raise EngineError(
                    f"{self._pending} requests are running or waiting, the most this engine takes.",
                    code="engine_overloaded",
                    hint="Try again later, or raise max_waiting.",
                )
            self._pending += 1
            self._inbox.append(job)
            self._start()
            self._changed.notify_all()

    def cancel(self, job: Generation) -> None:
        """Free a generation's slot before the next step."""
        with self._changed:
            job.cancelled = True
            self._changed.notify_all()

    def between_steps(self, act: Callable[[Scheduler], int]) -> Future[int]:
        """Have the engine's thread call `act` after the step in progress, on every job handed in before.

        Raises EngineError if the engine failed or closed.
        """
        result: Future[int] = Future()
        with self._changed:
            self._refuse_if_down()
            self._acts.append((act, result))
            self._start()
            self._changed.notify_all()
        return result

    def close(self) -> None:
        """Stop after the step in progress; whoever still waits gets an EngineError. Repeating it changes nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="practicum-engine", daemon=True)
            self._thread.start()

    def _refuse_if_down(self) -> None:
        if self._failure is not None:
            raise EngineError(
                f"the engine stopped: {type(self._failure).__name__}: {self._failure}", hint="Restart the server."
            ) from self._failure
        if self._closed:
            raise EngineError("the engine is closed.")

    def _run(self) -> None:
        apply_threads(self._threads)
        try:
            while self._take():
                self._scheduler.step()
                with self._changed:
                    self._pending = len(self._inbox) + self._scheduler.load
            self._end(EngineError("the engine was closed."))
        except BaseException as error:
            # Whatever it was, somebody waits for every one of these jobs; the log keeps the traceback.
            _log.critical("the engine's thread died", exc_info=True)
            self._end(EngineError(f"the engine stopped: {type(error).__name__}: {error}"), error)

    def _take(self) -> bool:
        """Wait for work and hand it to the scheduler; False when closed."""
        with self._changed:
            while not self._closed and not self._inbox and not self._acts and self._scheduler.idle:
                self._changed.wait()
            jobs, self._inbox = self._inbox, []
            for job in jobs:
                self._scheduler.add(job)
            if self._closed:
                return False
            acts, self._acts = self._acts, []
        for act, result in acts:
            try:
                result.set_result(act(self._scheduler))
            except Exception as error:  # the caller's, not the engine's
                result.set_exception(error)
        return True

    def _end(self, error: EngineError, cause: BaseException | None = None) -> None:
        with self._changed:
            self._failure = cause
            jobs, self._inbox = self._inbox, []
            acts, self._acts = self._acts, []
            for job in jobs:
                self._scheduler.add(job)
            self._pending = 0
        for _, result in acts:
            result.set_exception(error)
        self._scheduler.fail_all(error)
