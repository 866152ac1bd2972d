"""The names under which callers reach a policy: the live one by name or alias, a released one by `NAME@N`."""

from __future__ import annotations

from collections.abc import Sequence

from practicum.errors import NotFound
from practicum.gateway.swap import RELEASED, may_be_named
from practicum.types.policies import PolicyVersion

_MOST_NAMED = 8


class ModelNames:
    """Translates between names and versions."""

    def __init__(self, name: str, aliases: Sequence[str]) -> None:
        self.live_names = tuple(dict.fromkeys([name, *aliases]))
        self._name = name

    def of(self, version: int) -> str:
        """The name of one version, as answers carry it."""
        return f"{self._name}@{version}"

    def listed(self, versions: Sequence[PolicyVersion]) -> list[tuple[str, float]]:
        """Every name that may be asked for, with its creation time."""
        released = [policy for policy in versions if policy.status in RELEASED]
        live = next((policy for policy in released if policy.status == "live"), None)
        created = live.created_at if live is not None else 0.0
        return [(name, created) for name in self.live_names] + [(self.of(p.version), p.created_at) for p in released]

    def resolve(self, asked: str, versions: Sequence[PolicyVersion], *, candidates: bool = False) -> int | None:
        """The version asked for, or None for the live one. Raises NotFound naming what there is.

        `candidates`: a rollout may name one, since its answers reach no user.
        """
        if asked in self.live_names:
            return None
        for policy in versions:
            if asked == self.of(policy.version) and may_be_named(policy, candidates=candidates):
                return policy.version
        names = [name for name, _ in self.listed(versions)]
        shown = ", ".join(f"`{name}`" for name in names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
        raise NotFound(
            f"There is no model {asked[:80]!r} here.",
            hint=f"Models are {shown}.",
            code="model_not_found",
            param="model",
        )
