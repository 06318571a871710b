"""Defines ``Place``: rank, number of copies and host of rank 0, as a launcher states them.

A *copy* is one of the processes that a launcher such as torchrun starts of one script.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distir_ext.text.printable import shown

MOST_COPIES = 1 << 20
"""As many as a compiled plan may name devices."""


def listed(variables: Mapping[str, str]) -> str:
    """Variables of an environment for a message, as a shell would have them."""
    return ", ".join(f"{name}={shown(value)}" for name, value in variables.items())


@dataclass(frozen=True)
class Place:
    """Rank of this process among the copies of a script.

    Attributes:
        launcher: The launcher that started it, such as ``"torchrun"`` or ``"Slurm"``.
        rank: Index of the copy, from 0.
        size: Number of copies.
        local_rank: Index among the copies of its host, from 0; None if it is not stated.
        local_size: Number of copies of its host; None if it is not stated.
        leader: The host of rank 0, a name or an address; None if it is not stated.
        variables: The environment variables that state all this.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int | None = None
    local_size: int | None = None
    leader: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"rank {self.rank} of {self.size} by {self.launcher}"]
        if self.local_rank is not None:
            count = "" if self.local_size is None else f" of {self.local_size}"
            parts.append(f"on its host {self.local_rank}{count}")
        parts.append(
            f"rank 0 at {shown(self.leader)}" if self.leader else "host of rank 0 not stated"
        )
        return ", ".join(parts)

    def listed(self) -> str:
        """The variables, as a shell would have them."""
        return listed(self.variables)

    def contradictions(self) -> list[str]:
        """Lists contradictions between the numbers, in words."""
        found = []
        if self.size < 1:
            found.append(f"there are {self.size} copies")
        elif self.size > MOST_COPIES:
            found.append(f"there are {self.size} copies, more than {MOST_COPIES}")
        elif not 0 <= self.rank < self.size:
            found.append(f"rank {self.rank} is not one of {self.size} copies")
        if self.local_size is not None and not 1 <= self.local_size <= max(self.size, 1):
            found.append(f"{self.local_size} copies on this host, of {self.size}")
        local_bound = self.size if self.local_size is None else self.local_size
        if self.local_rank is not None and not 0 <= self.local_rank < max(local_bound, 1):
            found.append(f"local rank {self.local_rank} is not one of {local_bound} copies")
        return found
