"""The best choice of a problem, from the solver HiGHS, and random problems."""

from __future__ import annotations

from dataclasses import dataclass, field

import highspy
import numpy as np

from distir_ext.autosharding import INFINITE, Problem


@dataclass
class Plain:
    """A problem as lists: what ``problem`` states, and ``evaluate`` and ``best_cost`` read."""

    costs: list
    usages: list = field(default_factory=list)  # node, amounts, begin, end
    edges: list = field(default_factory=list)  # first, second, matrix
    limit: int | None = None

    def problem(self):
        """These lists as the solver takes them."""
        problem = Problem(memory_limit=self.limit)
        for costs in self.costs:
            problem.add_node(costs)
        for node, amounts, begin, end in self.usages:
            problem.add_memory(node, amounts, begin, end)
        for first, second, costs in self.edges:
            problem.add_edge(first, second, costs)
        return problem

    def evaluate(self, choice):
        """The cost of a choice, and whether it keeps all limits."""
        cost = sum(costs[i] for costs, i in zip(self.costs, choice, strict=True))
        cost += sum(matrix[choice[a]][choice[b]] for a, b, matrix in self.edges)
        used = [
            sum(amounts[choice[v]] for v, amounts, begin, end in self.usages if begin <= t < end)
            for t in range(max((end for *_, end in self.usages), default=0))
        ]
        return cost, self.limit is None or max(used, default=0) <= self.limit

    def best_cost(self):
        """The least cost of a choice that is allowed, or None."""
        highs = highspy.Highs()
        highs.silent()
        total = 0
        nodes = [[highs.addBinary() for _ in costs] for costs in self.costs]
        for variables, costs in zip(nodes, self.costs, strict=True):
            highs.addConstr(sum(variables) == 1)
            for variable, cost in zip(variables, costs, strict=True):
                if cost >= INFINITE:
                    highs.addConstr(variable == 0)
                else:
                    total = total + cost * variable
        for first, second, matrix in self.edges:
            if first == second:
                for i, variable in enumerate(nodes[first]):
                    if matrix[i][i] >= INFINITE:
                        highs.addConstr(variable == 0)
                    else:
                        total = total + matrix[i][i] * variable
                continue
            pairs = [
                [highs.addVariable(0, 0 if cost >= INFINITE else 1) for cost in row]
                for row in matrix
            ]
            for i, row in enumerate(pairs):
                highs.addConstr(sum(row) == nodes[first][i])
            for j, column in enumerate(zip(*pairs, strict=True)):
                highs.addConstr(sum(column) == nodes[second][j])
            for row, costs in zip(pairs, matrix, strict=True):
                for variable, cost in zip(row, costs, strict=True):
                    if cost < INFINITE:
                        total = total + cost * variable
        if self.limit is not None:
            for time in range(max((end for *_, end in self.usages), default=0)):
                used = 0
                for node, amounts, begin, end in self.usages:
                    if begin <= time < end:
                        for variable, amount in zip(nodes[node], amounts, strict=True):
                            used = used + amount * variable
                if not isinstance(used, int):
                    highs.addConstr(used <= self.limit)
        highs.setOptionValue("mip_rel_gap", 0.0)
        highs.setOptionValue("mip_abs_gap", 0.5)
        highs.minimize(total)
        if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            return None
        assert highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
        return round(highs.getInfo().objective_function_value)


def random_plain(seed):
    """A small problem: costs of any sign, forbidden strategies and pairs, tight limits."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 9))
    sizes = random.integers(1, 5, count)
    high = int(random.choice([4, 100, 10**6]))
    low = -high if random.random() < 0.2 else 0
    forbidden = random.choice([0.0, 0.1, 0.5])

    def numbers(*shape):
        values = random.integers(low, high, shape)
        return np.where(random.random(shape) < forbidden, INFINITE, values).tolist()

    costs = [
        [
            INFINITE if random.random() < forbidden / 5 else int(cost)
            for cost in random.integers(low, high, size)
        ]
        for size in sizes
    ]
    edges = []
    for _ in range(int(random.integers(0, 2 * count + 1))):
        first, second = (int(v) for v in random.integers(0, count, 2))
        if random.random() < 0.2 and sizes[first] == sizes[second]:
            matrix = np.where(np.eye(sizes[first]) > 0, 0, INFINITE).astype(int).tolist()
        else:
            matrix = numbers(sizes[first], sizes[second])
        edges.append((first, second, matrix))
    usages = []
    for _ in range(int(random.integers(0, 2 * count))):
        node = int(random.integers(count))
        begin, end = sorted(int(t) for t in random.integers(0, 6, 2))
        usages.append((node, random.integers(0, 50, sizes[node]).tolist(), begin, end))
    plain = Plain(costs, usages, edges)
    if random.random() < 0.8:
        # Between the least and the most that some time may need.
        times = range(max((end for *_, end in usages), default=0))
        at = [[amounts for _, amounts, begin, end in usages if begin <= t < end] for t in times]
        least = max((sum(map(min, each)) for each in at), default=0)
        most = max((sum(map(max, each)) for each in at), default=0)
        plain.limit = int(least + random.choice([-0.05, 0.1, 0.3, 0.6]) * (most - least))
        plain.limit = max(0, plain.limit)
    return plain
