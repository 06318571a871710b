"""Deadlock detection among workers of several hosts, checked against a simulation."""

from __future__ import annotations

import random
from collections import deque

import pytest

from distir_ext.workers.hosts.deadlock import find_deadlock


class Worker:
    """A program of sends and receives, as progress shows it: waiting is asleep in a receive."""

    def __init__(self, rank, count, program):
        self.rank, self.count, self.program = rank, count, program
        self.asleep = False
        self.waits = 0
        self.sent, self.seen, self.untaken = [0] * count, [0] * count, [0] * count

    @property
    def finished(self):
        return not self.program

    def look(self):
        return [int(self.asleep), self.waits, *self.sent, *self.seen]

    def step(self, network):
        """One thing that a worker does between two looks."""
        if self.finished:
            return
        action, other = self.program[0]
        if action == "send":
            network[self.rank, other].append(None)
            self.sent[other] += 1
            self.program.pop(0)
            return
        for source in range(self.count):
            arrived = network[source, self.rank]
            self.seen[source] += len(arrived)
            self.untaken[source] += len(arrived)
            arrived.clear()
        if self.untaken[other]:
            self.untaken[other] -= 1
            self.asleep = False
            self.program.pop(0)
        elif not self.asleep:
            self.asleep = True
            self.waits += 1


def run(seed):
    """A random run; whether it was said that it cannot go on, and whether it then did."""
    chance = random.Random(seed)
    count = chance.choice([2, 3, 4])
    actions = [[] for _ in range(count)]
    for _ in range(chance.randrange(1, 12)):
        source, target = chance.sample(range(count), 2)
        actions[source].append(("send", target))
        actions[target].append(("receive", source))
    if chance.random() < 0.6:  # a program that disagrees
        mine = chance.choice(actions)
        if mine:
            mine.pop(chance.randrange(len(mine)))
    workers = [Worker(rank, count, program) for rank, program in enumerate(actions)]
    network = {(a, b): deque() for a in range(count) for b in range(count)}
    said = False
    for _ in range(400):
        finished = [worker.finished for worker in workers]  # what has been answered by now
        looks = []
        for _ in range(2):
            looks.append([])
            for worker in chance.sample(workers, count):
                for other in chance.choices(workers, k=chance.randrange(3)):
                    other.step(network)
                looks[-1].append((worker.rank, worker.look()))
        found = find_deadlock(finished, *([look for _, look in sorted(each)] for each in looks))
        if found:
            said = True
            before = [len(worker.program) for worker in workers]
            for worker in workers * 20:
                worker.step(network)
            assert [len(worker.program) for worker in workers] == before, (seed, found)
            assert found == [worker.rank for worker in workers if not worker.finished]
            break
    return said, all(worker.finished for worker in workers)


def test_it_is_said_exactly_of_what_can_not_go_on():
    outcomes = [run(seed) for seed in range(300)]
    assert all(said != finished for said, finished in outcomes)
    assert min(outcomes.count((True, False)), outcomes.count((False, True))) > 30


WAITS = [1, 7, 0, 1, 0, 1]  # wait 7; it has sent 1 message to the other and seen 1 of it


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([0, 7, 0, 1, 0, 1], WAITS),
        (WAITS, [1, 8, 0, 1, 0, 1]),
        ([1, 7, 0, 1, 0, 0], WAITS),
        ([], WAITS),
    ],
    ids=["runs", "is in another wait", "has not seen a message", "is not known"],
)
def test_what_is_not_certain(before, after):
    other = [1, 3, 1, 0, 1, 0]
    assert find_deadlock([False, False], [WAITS, other], [WAITS, other]) == [0, 1]
    assert find_deadlock([False, False], [before, other], [after, other]) == []
