"""Policy versions: which exist, which is live, and why. A pointer, never weights."""

from practicum.policies.registry import ALLOWED_SUFFIXES, REQUIRED_FILES, Registry

__all__ = ["ALLOWED_SUFFIXES", "REQUIRED_FILES", "Registry"]
