"""Select what a run learns from: attribute, deduplicate, bound each source, split by time and session, freeze."""

from practicum.curation.select import curate

__all__ = ["curate"]
