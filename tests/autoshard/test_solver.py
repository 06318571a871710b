"""The solver against HiGHS, and on problems whose answer is known."""

import math
import os
import signal
import threading

import numpy as np
import pytest
from tests.autoshard.oracle import random_plain

from distir_ext.autosharding import INFINITE, Problem, solve


def test_random_problems_have_the_cost_that_highs_finds(sample):
    for seed in range(sample(200, 200, 2_000, 2_000)):
        plain = random_plain(seed)
        solution = solve(plain.problem())
        best = plain.best_cost()
        assert solution.cost == best, seed
        assert solution.is_infeasible == (best is None), seed
        if best is not None:
            assert solution.bound <= best, seed
            assert solution.is_optimal, seed
            assert plain.evaluate(solution.choice) == (best, True), seed


def test_memory_decides_between_two_plans():
    # A cheap strategy takes 3 bytes; two nodes at once may take 4.
    def solved(limit):
        problem = Problem(memory_limit=limit)
        for begin in (0, 1, 3):
            node = problem.add_node([1, 10])
            problem.add_memory(node, [3, 1], begin, begin + 2)
        return solve(problem)

    assert solved(None).cost == solved(6).cost == 3
    one_dear = solved(4)
    assert (one_dear.cost, one_dear.bound, one_dear.gap) == (12, 12, 0.0)
    assert one_dear.choice in ((0, 1, 0), (1, 0, 0))
    assert solved([4, 6, 4, 4, 4]).cost == 3
    assert solved(2).cost == 30
    none = solved(1)
    assert none.is_infeasible
    assert (none.choice, none.cost, none.bound, none.gap) == (None, None, None, None)


def layers(count, limit):
    """Equal layers of three nodes: the more memory, the faster, in three steps; changes cost."""
    problem = Problem(memory_limit=limit)
    change = [[0, 40, 40], [40, 0, 40], [40, 40, 0]]
    for layer in range(count):
        for part in range(3):
            node = problem.add_node([1000 + 7 * part, 1330 + 3 * part, 1900])
            problem.add_memory(node, [400 + part, 200, 100 + 9 * part], 0, count)
            problem.add_memory(node, [90, 60, 50], layer, layer + 1)
            for other in range(max(0, node - 3), node):
                problem.add_edge(other, node, change)
    return problem


def test_a_limit_between_plans_of_equal_layers_mixes_them():
    """In one round, to less than a fifth of a layer."""
    count = 60
    for limit in (30_000, 45_000, 60_000):
        solution = solve(layers(count, limit), effort=1)
        assert solution.gap < 0.2 / count, limit


def grid(width, height, strategies, seed, limit=None):
    """A grid with random costs, in which no reduction applies."""
    random = np.random.default_rng(seed)
    problem = Problem(memory_limit=limit)
    for place in range(width * height):
        problem.add_node(random.integers(0, 100, strategies))
        problem.add_memory(place, random.integers(0, 100, strategies), place, place + 2 * width)
        for other in [place - 1] * (place % width > 0) + [place - width] * (place >= width):
            problem.add_edge(other, place, random.integers(0, 100, (strategies, strategies)))
    return problem


def test_a_given_effort_gives_one_result_with_a_small_gap():
    problem = grid(10, 10, 4, seed=0, limit=700)
    first, second = solve(problem, effort=1), solve(problem, effort=1)
    assert first == second
    assert first.gap < 0.1
    more = solve(problem, effort=2)
    assert more.bound >= first.bound
    assert more.cost <= first.cost


def test_a_search_that_is_stopped_has_the_best_so_far():
    seen = []

    def stop(cost, bound):
        seen.append((cost, bound))
        return cost is not None

    solution = solve(grid(16, 16, 4, seed=1), effort=1_000, stop=stop)
    assert seen[0] == (None, -INFINITE)
    assert solution.cost <= seen[-1][0]
    assert solution.bound >= seen[-1][1]
    assert not solution.is_optimal

    def interrupt(cost, bound):
        if cost is not None:
            raise KeyboardInterrupt
        return False

    assert solve(grid(16, 16, 4, seed=1), effort=1_000, stop=interrupt).cost is not None

    def fail(cost, bound):
        raise ArithmeticError("not the solver's")

    with pytest.raises(ArithmeticError, match="not the solver's"):
        solve(grid(16, 16, 4, seed=1), stop=fail)
    nothing = solve(grid(16, 16, 4, seed=1), effort=0)
    assert nothing.choice is None
    assert not nothing.is_infeasible


def test_ctrl_c_ends_a_search_with_the_best_so_far():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    try:
        solution = solve(grid(16, 16, 4, seed=1), effort=1_000)
    finally:
        interrupt.cancel()
        signal.signal(signal.SIGINT, before)
    assert not solution.is_optimal
    assert solution.bound > -INFINITE


def test_threads_solve_at_once_and_get_what_one_gets():
    problems = [grid(5, 5, 3, seed=seed, limit=300) for seed in range(3)]
    found = {}

    def use(number):
        found[number] = solve(problems[number % 3], effort=2)

    users = [threading.Thread(target=use, args=(number,)) for number in range(6)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    for number in range(6):
        assert found[number] == solve(problems[number % 3], effort=2)


def test_costs_are_whole_numbers_or_infinite():
    problem = Problem()
    node = problem.add_node([math.inf, 2.0, 10**30])
    problem.add_edge(node, problem.add_node([0]), np.array([[0], [5], [0]], dtype=np.uint64))
    assert solve(problem).choice == (1, 0)
    assert solve(problem).cost == 7
    assert solve(Problem()).cost == 0
    forbidden = Problem()
    forbidden.add_node([INFINITE])
    assert solve(forbidden).is_infeasible


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (lambda p: p.add_node([]), ValueError, "costs of node 2 have shape"),
        (lambda p: p.add_node([1.5]), ValueError, "costs of node 2 must be whole numbers"),
        (lambda p: p.add_node([math.nan]), ValueError, "costs of node 2 must be whole numbers"),
        (lambda p: p.add_node(["a"]), TypeError, "costs of node 2 must be whole numbers"),
        (lambda p: p.add_edge(0, 2, [[0]]), ValueError, "there is no node 2; there are 2"),
        (lambda p: p.add_edge(0, 1, [[0, 1]]), ValueError, "its nodes have 2 and 3 strategies"),
        (lambda p: p.add_memory(0, [1], 0, 1), ValueError, "memory of node 0 has shape"),
        (lambda p: p.add_memory(0, [1, -1], 0, 1), ValueError, "memory of node 0 must be at least"),
        (lambda p: p.add_memory(0, [1, 1], 2, 1), ValueError, r"at times \[2, 1\)"),
        (lambda p: p.add_node(np.array([-(2**63)])), ValueError, "costs of node 2 must be whole"),
        (lambda p: p.add_edge(0, 1, [[1, 2], [3]]), ValueError, "costs of edge 0-1 are no array"),
        (lambda p: p.add_edge(0.5, 1, [[0]]), TypeError, "nodes must be integers, not float"),
        (lambda p: p.add_memory(None, [1, 1], 0, 1), TypeError, "nodes must be integers"),
        (lambda p: p.add_memory(0, [1, 1], 0, 2.5), TypeError, "times of memory of node 0 must be"),
        (lambda p: p.add_memory(0, [1, 1], 0, 10**12), ValueError, "which are not within"),
        (lambda p: solve(p, effort=math.nan), TypeError, "effort must be an int"),
        (lambda p: solve(p, stop=1), TypeError, "stop must be a function"),
        (lambda p: solve({}), TypeError, "problem must be a Problem, not dict"),
        (lambda p: solve(p, effort=-1), ValueError, "effort is -1"),
        (
            lambda p: [p.add_node([INFINITE - 1]), p.add_node([1]), solve(p)],
            ValueError,
            "may add up to",
        ),
        (
            lambda p: [p.add_memory(0, [0, 1], 0, 3), setattr(p, "memory_limit", [1]), solve(p)],
            ValueError,
            "memory is used at 3 times",
        ),
    ],
)
def test_errors_name_what_does_not_fit(state, error, message):
    problem = Problem()
    problem.add_node([1, 2])
    problem.add_node([1, 2, 3])
    with pytest.raises(error, match=message):
        state(problem)
