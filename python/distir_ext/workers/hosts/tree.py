"""Tree of hosts that forward a controller's messages to others.

Example: five hosts, none of which forwards to more than two. The controller writes to hosts 0
and 3, host 0 to hosts 1 and 2, and host 3 to host 4::

    >>> [each.hosts for each in subtrees(range(5), 2)]
    [range(0, 3), range(3, 5)]
    >>> [each.hosts for each in subtrees(range(5), 2)[0].below]
    [range(1, 2), range(2, 3)]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

# So many hosts a controller writes to itself, in less time than it takes to pass messages on.
_MOST_AT_ONE_LEVEL = 32


@dataclass(frozen=True)
class Subtree:
    """Host that gets a message, and the hosts that it forwards messages to.

    Attributes:
        hosts: Numbers of the hosts; the first of them forwards to the others.
        fanout: Most hosts that one host forwards to.
    """

    hosts: range
    fanout: int

    @property
    def first(self) -> int:
        """The host that passes on."""
        return self.hosts[0]

    @property
    def below(self) -> list[Subtree]:
        """To whom."""
        return subtrees(self.hosts[1:], self.fanout)

    def flat(self) -> Iterator[Subtree]:
        """This one, and all below."""
        yield self
        for each in self.below:
            yield from each.flat()


def subtrees(hosts: range, fanout: int) -> list[Subtree]:
    """Hosts in neighbouring parts of about the same size, ``fanout`` of them at most."""
    count = min(len(hosts), fanout)
    bounds = [-(-len(hosts) * part // count) for part in range(count + 1)] if count else []
    return [Subtree(hosts[begin:end], fanout) for begin, end in itertools.pairwise(bounds)]


def usual_fanout(num_hosts: int) -> int:
    """All of a few hosts, and of many so many that there are two levels of hosts."""
    if num_hosts <= _MOST_AT_ONE_LEVEL:
        return num_hosts
    fanout = 1
    while fanout * (fanout + 1) < num_hosts:
        fanout += 1
    return fanout
