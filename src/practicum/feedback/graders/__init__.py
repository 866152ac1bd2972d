"""What a finished rollout was worth: verifiers and judges over its final files, its answer and its model calls.

`graders` is the way in: a table from a grader's name to what makes one from a task's options.
"""

from practicum.feedback.graders.table import GraderSettings, Judge, graders

__all__ = ["GraderSettings", "Judge", "graders"]
