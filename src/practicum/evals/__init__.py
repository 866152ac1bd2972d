"""Held-out suites, paired comparison, intervals: the evidence that the release gate weighs."""
