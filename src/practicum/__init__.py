"""Practicum: an AI agent learns on the job.

Serve an open-weights model to the agent a team already runs, record every model call token-exactly, take feedback
in any form, learn from it, prove the new policy better, and swap it in without a restart.
"""

__version__ = "0.1.0"
