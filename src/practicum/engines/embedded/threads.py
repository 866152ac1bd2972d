"""CPU threads, set in one place. Importing this module imports no torch: half of what it does must come first.

Two OpenMP pools that spin while they wait collapse when they share cores (a small matrix product went from 0.34 ms to
15 ms on two cores), so waiting is made passive. OpenMP reads its environment when torch is imported, once: call
`configure_threads` at the very start of a process, before anything imports torch.
"""

from __future__ import annotations

import os
import sys

_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}


def configure_threads(threads: int) -> None:
    """Use `threads` CPU threads for matrix products (0 keeps torch's choice) and passive waiting.

    The wait policy takes effect only if torch was not yet imported; an explicit environment variable wins over it.
    """
    if threads < 0:
        raise ValueError(f"threads is {threads}; it must be 0 (torch's choice) or more")
    for name, value in _PASSIVE.items():
        os.environ.setdefault(name, value)
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        if "torch" in sys.modules:
            apply_threads(threads)


def apply_threads(threads: int) -> None:
    """Set torch's thread count (0 keeps it). The one call of `torch.set_num_threads` in the package."""
    if threads:
        import torch

        torch.set_num_threads(threads)
