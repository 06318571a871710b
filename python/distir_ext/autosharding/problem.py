"""The problem that the solver of automatic sharding takes: nodes, edges, limits of memory."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

INFINITE = 10**18
"""The least cost that is forbidden; ``math.inf`` is also forbidden."""

_MOST_STRATEGIES = 2**15 - 2
_MOST_MEMORY = 2**62
_MOST_TIMES = 2**24

Array = NDArray[np.int64]


def _whole(values: ArrayLike, what: str) -> Array:
    """An array of whole numbers; those from ``INFINITE`` on become it."""
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of several lengths
        raise ValueError(f"{what} are no array: {error}") from error
    if array.dtype.kind == "i" and array.min(initial=0) > -INFINITE:
        return np.minimum(array.astype(np.int64), INFINITE)
    flat = array.ravel().tolist()  # Python's numbers
    if array.dtype.kind not in "iufO" or any(
        isinstance(value, bool) or not isinstance(value, int | float) for value in flat
    ):
        raise TypeError(f"{what} must be whole numbers or infinite, not {array.dtype}")
    numbers = [min(value, INFINITE) for value in flat]
    if any(value != value or value <= -INFINITE or value != int(value) for value in numbers):
        raise ValueError(f"{what} must be whole numbers or infinite, above -10**18")
    return np.array([int(value) for value in numbers], dtype=np.int64).reshape(array.shape)


def _integer(value: int, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be integers, not {type(value).__name__}") from None


@dataclass
class Problem:
    """Nodes with strategies, edges with a cost for each pair of strategies, limits of memory.

    Example:
        >>> problem = Problem()
        >>> a = problem.add_node([3, 5])
        >>> b = problem.add_node([0, 4])
        >>> problem.add_edge(a, b, [[9, 0], [0, 9]])
    """

    memory_limit: int | Sequence[int] | None = None
    """Bytes that may be used at any time, or at each time; ``None``: no limit."""

    _costs: list[Array] = field(default_factory=list, repr=False)
    _usages: list[tuple[int, int, int]] = field(default_factory=list, repr=False)
    _amounts: list[Array] = field(default_factory=list, repr=False)
    _edges: list[tuple[int, int]] = field(default_factory=list, repr=False)
    _edge_costs: list[Array] = field(default_factory=list, repr=False)

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self._costs)

    def add_node(self, costs: ArrayLike) -> int:
        """Adds a node.

        Args:
            costs: The cost of each strategy; from ``INFINITE`` on it is forbidden.

        Returns:
            The node's number, for ``add_edge`` and in ``Solution.choice``.

        Raises:
            ValueError: If there is no strategy, or a cost is not a whole number.
            TypeError: If costs are not numbers.
        """
        node = len(self._costs)
        numbers = _whole(costs, f"costs of node {node}")
        if numbers.ndim != 1 or not 0 < numbers.size <= _MOST_STRATEGIES:
            raise ValueError(
                f"costs of node {node} have shape {numbers.shape}; they must be a vector of "
                f"1 to {_MOST_STRATEGIES} strategies"
            )
        self._costs.append(numbers)
        return node

    def add_memory(self, node: int, amounts: ArrayLike, begin: int, end: int) -> None:
        """States what a node takes of memory at the times ``begin``, .., ``end - 1``.

        Args:
            node: A node.
            amounts: Bytes for each of its strategies.
            begin: The first time.
            end: The time after the last one, at most 2**24; ``begin`` for none.

        Raises:
            ValueError: If there is no such node, an amount is negative, or times are.
            TypeError: If amounts are not numbers, or the node or times not integers.
        """
        node = self._node(node)
        costs = self._costs[node]
        begin, end = (_integer(each, f"times of memory of node {node}") for each in (begin, end))
        numbers = _whole(amounts, f"memory of node {node}")
        if numbers.shape != costs.shape:
            raise ValueError(
                f"memory of node {node} has shape {numbers.shape}, but its costs {costs.shape}"
            )
        if numbers.min() < 0 or numbers.max() >= INFINITE:
            raise ValueError(f"memory of node {node} must be at least 0 and less than 10**18 bytes")
        if not 0 <= begin <= end <= _MOST_TIMES:
            raise ValueError(
                f"memory of node {node} is at times [{begin}, {end}), which are not within "
                f"[0, {_MOST_TIMES})"
            )
        if begin < end:
            self._usages.append((node, begin, end))
            self._amounts.append(numbers)

    def add_edge(self, first: int, second: int, costs: ArrayLike) -> None:
        """Adds costs of pairs of strategies; several edges between two nodes add up.

        Args:
            first: A node, whose strategies are the rows.
            second: A node, whose strategies are the columns.
            costs: A matrix; costs from ``INFINITE`` on are forbidden.

        Raises:
            ValueError: If there is no such node, or the matrix has another shape.
            TypeError: If costs are not numbers, or nodes not integers.
        """
        first, second = self._node(first), self._node(second)
        shape = (self._costs[first].size, self._costs[second].size)
        numbers = _whole(costs, f"costs of edge {first}-{second}")
        if numbers.shape != shape:
            raise ValueError(
                f"costs of edge {first}-{second} have shape {numbers.shape}; its nodes have "
                f"{shape[0]} and {shape[1]} strategies"
            )
        self._edges.append((first, second))
        self._edge_costs.append(numbers.reshape(-1))

    def _node(self, node: int) -> int:
        node = _integer(node, "nodes")
        if not 0 <= node < len(self._costs):
            raise ValueError(f"there is no node {node}; there are {len(self._costs)}")
        return node

    def arrays(self) -> tuple[Array, ...]:
        """The problem as the native solver takes it.

        Raises:
            ValueError: If limits are not whole numbers or too few, or sums may overflow.
        """
        times = max((end for _, _, end in self._usages), default=0)
        if self.memory_limit is None:
            usages, amounts, limits = [], [], np.empty(0, np.int64)
        else:
            usages, amounts = self._usages, self._amounts
            given = _whole(self.memory_limit, "memory_limit")
            limits = np.full(times, given) if given.ndim == 0 else given
            if limits.ndim != 1 or limits.size < times:
                raise ValueError(
                    f"memory_limit has shape {given.shape}, but memory is used at {times} times"
                )
        sums = [np.abs(np.where(each < INFINITE, each, 0)).max(initial=0) for each in self._costs]
        sums += [
            np.abs(np.where(each < INFINITE, each, 0)).max(initial=0) for each in self._edge_costs
        ]
        if sum(map(int, sums)) >= INFINITE:
            raise ValueError("costs that are allowed may add up to 10**18 or more; scale them down")
        if sum(int(each.max()) for each in amounts) >= _MOST_MEMORY:
            raise ValueError("memory may add up to 2**62 bytes or more; use a larger unit")

        def joined(arrays: list[Array]) -> Array:
            return np.concatenate([np.empty(0, np.int64), *arrays])

        def flat(rows: Sequence[Any]) -> Array:
            return np.array(rows, dtype=np.int64).reshape(-1)

        return (
            flat([each.size for each in self._costs]),
            joined(self._costs),
            flat(usages),
            joined(amounts),
            flat(self._edges),
            joined(self._edge_costs),
            np.ascontiguousarray(limits, dtype=np.int64),
        )
