"""Solves problems of automatic sharding natively."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm_ffi

from distir_ext.autosharding.problem import INFINITE, Problem

EFFORT = 20


@dataclass(frozen=True)
class Solution:
    """A choice of strategies, and a bound of what any choice costs."""

    choice: tuple[int, ...] | None
    """The strategy of each node; ``None`` if no choice within all limits is known."""

    cost: int | None
    """What the choice costs; ``None`` without one."""

    bound: int | None
    """No choice costs less; ``None`` if it is proven that no choice is allowed."""

    @property
    def is_infeasible(self) -> bool:
        """True if it is proven that no choice is allowed."""
        return self.bound is None

    @property
    def is_optimal(self) -> bool:
        """True if it is proven that no choice costs less."""
        return self.cost is not None and self.cost == self.bound

    @property
    def gap(self) -> float | None:
        """Part of its cost by which the choice may exceed the best; ``None`` without a choice."""
        if self.cost is None or self.bound is None:
            return None
        return (self.cost - self.bound) / max(1, abs(self.cost))


def solve(
    problem: Problem,
    *,
    effort: int = EFFORT,
    gap: float = 0.0,
    stop: Callable[[int | None, int], bool] | None = None,
) -> Solution:
    """Chooses a strategy for each node so that the sum of costs is small, and bounds it.

    It uses two threads. Unless it is stopped, the result depends on the problem, ``effort``
    and ``gap`` alone.

    Args:
        problem: The problem.
        effort: Most rounds of search; each takes up to twice the time of the one before. It ends
            earlier once the choice is proven to be the best.
        gap: By which part of its cost the choice may exceed the bound; no round follows then. By
            default it is proven to be the best, or ``effort`` ends.
        stop: Called several times a second with the best cost so far (``None`` if no choice is
            known) and the bound; true ends the search, with the best so far.

    Returns:
        The best choice that was found. Ctrl-C also ends the search and returns it.

    Raises:
        ValueError: If ``effort`` or ``gap`` is negative, or numbers of the problem do not fit
            together.
        TypeError: If an argument has another type.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, not {type(problem).__name__}")
    if not isinstance(effort, int):
        raise TypeError(f"effort must be an int, not {type(effort).__name__}")
    if stop is not None and not callable(stop):
        raise TypeError(f"stop must be a function, not {type(stop).__name__}")
    if effort < 0:
        raise ValueError(f"effort is {effort}; it must be at least 0")
    if not gap >= 0:
        raise ValueError(f"gap is {gap}; it must be at least 0")

    raised: list[BaseException] = []

    def ask(cost: int, bound: int) -> bool:
        try:
            return stop is not None and bool(stop(None if cost >= INFINITE else cost, bound))
        except KeyboardInterrupt:
            raise  # native code takes it for an answer, also before this function begins
        except BaseException as error:  # kept here: native code knows only some types of errors
            raised.append(error)
            return True

    arrays = [tvm_ffi.from_dlpack(array) for array in problem.arrays()]
    function = tvm_ffi.get_global_func("distir.autoshard.Solve")
    choice, cost, bound = function(*arrays, min(effort, 2**31 - 1), float(gap), ask)
    if raised:
        raise raised[0]
    return Solution(
        choice=tuple(choice) if cost < INFINITE else None,
        cost=cost if cost < INFINITE else None,
        bound=bound if bound < INFINITE else None,
    )
