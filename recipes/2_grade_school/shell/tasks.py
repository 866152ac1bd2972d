"""Small jobs with files in a sandbox, several turns each: practicum.environments.shell in the form of plain commands.

Temperature .7: at 1 a small model that has seven examples before it still strays from them at every other answer.
"""

from practicum.environments.shell import jobs

TRAIN = jobs("train", 112, temperature=0.7)
HELDOUT = jobs("heldout", 42, temperature=0.7)
