"""Durable records in SQLite: calls, feedback, keys, policies, decisions, runs, rollouts.

`open_store` gives a `Store`; its write methods return futures that resolve once the record is on disk.
"""

from practicum.store.core import StoreHealth
from practicum.store.feedback_rows import FeedbackView
from practicum.store.keys import Holders, create_key, list_keys, lookup, revoke
from practicum.store.rollout_rows import RolloutEvent
from practicum.store.store import Store, open_store

__all__ = [
    "FeedbackView",
    "Holders",
    "RolloutEvent",
    "Store",
    "StoreHealth",
    "create_key",
    "list_keys",
    "lookup",
    "open_store",
    "revoke",
]
