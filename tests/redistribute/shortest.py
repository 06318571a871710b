"""Shortest paths between shardings by brute force: every sharding, every collective.

Written from the formulas of the documentation, apart from the planner: bytes and messages are
counted over the cells of a grid, and distances come from Floyd and Warshall's recursion.
"""

import itertools
import math

import numpy as np

from .model import all_shardings, count, shard_index


class Distances:
    """Seconds from every sharding (also partial) to every whole one.

    Args:
        shape: Of the mesh.
        dims: Extents of the tensor.
        size: Bytes of the tensor.
        launch: Of a collective, seconds.
        latency: Until a message arrives, seconds: one number, or one for each mesh axis.
        gap: Seconds between messages at the same time, likewise.
        bandwidth: Bytes per second: one number, or one for each mesh axis.
    """

    def __init__(self, shape, dims, size, launch, latency, gap, bandwidth):
        self.shape, self.size, self.launch = shape, size, launch
        self.latency = np.broadcast_to(latency, len(shape))
        self.gap = np.broadcast_to(gap, len(shape))
        self.bandwidth = np.broadcast_to(bandwidth, len(shape))
        self.nodes = [
            node
            for node in all_shardings(shape, len(dims), with_partial=True)
            if all(extent % count(axes) == 0 for extent, axes in zip(dims, node[0], strict=True))
        ]
        self.index = {node: i for i, node in enumerate(self.nodes)}
        self.whole = [i for i, node in enumerate(self.nodes) if not node[1]]
        self.received = np.zeros((len(self.nodes),) * 2)
        self.seconds = np.full((len(self.nodes),) * 2, np.inf)
        np.fill_diagonal(self.seconds, 0)
        for source in self.nodes:
            for target, seconds in self.collectives(source):
                self.add(source, target, seconds)
        self.add_exchanges()
        for middle in range(len(self.nodes)):
            through = self.seconds[:, middle, None] + self.seconds[None, middle, :]
            np.minimum(self.seconds, through, out=self.seconds)

    def add(self, source, target, seconds):
        if target in self.index:
            i, j = self.index[source], self.index[target]
            self.seconds[i, j] = min(self.seconds[i, j], seconds)

    # ---- collectives in groups

    def link(self, axes):
        along = sorted({ref[0] for ref in axes})
        worst = max(along, key=lambda axis: (-self.bandwidth[axis], self.latency[axis]))
        return self.latency[worst], self.gap[worst], self.bandwidth[worst]

    def collectives(self, source):
        dims, partial = source
        used = {ref for axes in dims for ref in axes} | set(partial)
        local = self.size / math.prod(count(axes) for axes in dims)

        def replaced(**lists):
            return tuple(lists.get(f"_{d}", axes) for d, axes in enumerate(dims))

        for d, axes in enumerate(dims):
            for ref in free_parts(self.shape, used):
                yield (replaced(**{f"_{d}": (*axes, ref)}), partial), 0.0
            for length in range(1, len(axes) + 1):
                run, rest = axes[-length:], axes[:-length]
                n = count(run)
                alpha, g, beta = self.link(run)
                gather = turns(n, alpha, g) + (n - 1) * local / beta
                yield (replaced(**{f"_{d}": rest}), partial), self.launch + gather
                for e, other in enumerate(dims):
                    if e != d:
                        lists = {f"_{d}": rest, f"_{e}": (*other, *run)}
                        moved = alpha + (n - 1) * (g + local / n / beta)
                        yield (replaced(**lists), partial), self.launch + moved
        for length in range(1, len(partial) + 1):
            for chosen in itertools.permutations(partial, length):
                n = count(chosen)
                alpha, g, beta = self.link(chosen)
                rest = tuple(ref for ref in partial if ref not in chosen)
                scatter = turns(n, alpha, g) + (n - 1) * local / n / beta
                trees = 2 * math.ceil(math.log2(n)) * (alpha + g) + 2 * local / beta
                yield (dims, rest), self.launch + min(2 * scatter, trees)
                for d, axes in enumerate(dims):
                    split = replaced(**{f"_{d}": (*axes, *chosen)})
                    yield (split, rest), self.launch + scatter

    # ---- sends and receives

    def add_exchanges(self):
        """From every whole sharding to every other, device by device, block by block."""
        devices = range(math.prod(self.shape))
        units = math.prod(self.shape)
        cuts = np.array(
            [[count(axes) for axes in self.nodes[i][0]] for i in self.whole]
        )  # blocks per dimension
        at = np.array(
            [
                [[shard_index(self.shape, p, axes) for axes in self.nodes[i][0]] for p in devices]
                for i in self.whole
            ]
        )
        begin = at * (units // cuts)[:, None, :]
        end = begin + (units // cuts)[:, None, :]
        cell = self.size / float(units) ** cuts.shape[1]
        uniform = len(set(self.latency)) == len(set(self.bandwidth)) == 1
        for i, source in enumerate(self.whole):
            shared = np.minimum(end[i], end) - np.maximum(begin[i], begin)
            own = np.prod(np.maximum(shared, 0), axis=2)
            wanted = np.prod(end - begin, axis=2)
            width = units // cuts[i]
            blocks = np.prod((end - 1) // width - begin // width + 1, axis=2)
            messages = blocks - (own > 0)
            received = (wanted - own) * cell
            self.received[source, self.whole] = received.max(axis=1)
            if uniform:
                seconds = self.latency[0] + messages * self.gap[0] + received / self.bandwidth[0]
                _, sends = self.nearest(i, begin, end, cell)
            else:
                seconds, sends = self.nearest(i, begin, end, cell)
            seconds = np.maximum(seconds.max(axis=1), sends.max(axis=1))
            seconds = np.where(messages.max(axis=1) > 0, self.launch + seconds, 0)
            np.minimum.at(self.seconds, (source, self.whole), seconds)

    def nearest(self, i, begin, end, cell):
        """Seconds per target and device to receive from the nearest holders, and for these, which
        share it evenly, to send."""
        coordinates = np.array(list(np.ndindex(*self.shape)))
        seconds, latency = np.zeros(begin.shape[:2]), np.zeros(begin.shape[:2])
        sends, begins = np.zeros(begin.shape[:2]), np.zeros(begin.shape[:2])
        held = sorted({(tuple(b), tuple(e)) for b, e in zip(begin[i], end[i], strict=True)})
        for block_begin, block_end in held:
            holders = [p for p in range(len(begin[i])) if tuple(begin[i][p]) == block_begin]
            shared = np.minimum(block_end, end) - np.maximum(block_begin, begin)
            volume = np.prod(np.maximum(shared, 0), axis=2) * cell
            for p in range(begin.shape[1]):
                if p in holders:
                    continue
                links = [
                    self.link(
                        [(axis,) for axis in np.flatnonzero(coordinates[p] != coordinates[h])]
                    )
                    for h in holders
                ]
                alpha, g, beta = min(links, key=lambda link: (-link[2], link[0]))
                lacks = volume[:, p] > 0
                seconds[:, p] += np.where(lacks, g + volume[:, p] / beta, 0)
                latency[:, p] = np.maximum(latency[:, p], np.where(lacks, alpha, 0))
                nearest = [
                    h for h, link in zip(holders, links, strict=True) if link[::2] == (alpha, beta)
                ]
                for h in nearest:
                    sends[:, h] += volume[:, p] / beta / len(nearest)
                    begins[:, h] = np.maximum(begins[:, h], np.where(lacks, alpha, 0))
        return latency + seconds, begins + sends


def turns(n, alpha, g):
    """Seconds for the messages of a gather: all at once, or doubling where n is a power of two."""
    at_once = alpha + (n - 1) * g
    return min(at_once, round(math.log2(n)) * (alpha + g)) if n & (n - 1) == 0 else at_once


def free_parts(shape, used):
    for axis, extent in enumerate(shape):
        pre_size = 1
        for prime in (2, 3, 5):
            while extent // pre_size % prime == 0:
                if (axis, pre_size, prime) not in used:
                    yield axis, pre_size, prime
                pre_size *= prime
