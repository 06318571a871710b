"""Compares the cost of moving one tensor between shardings with that of other planners.

    python benchmarks/redistribute.py [--meshes 8 2,4 2,2,2 2,3,2] [--xla] [--cache FILE] [--torch]

For every ordered pair of shardings of a matrix on each mesh (every mesh axis on a dimension or on
none, in every order): the bytes that the device that receives most receives, and the modelled time,
of

- this project's plan, under the default cluster and under one without latency;
- greedy: per dimension, what a planner without search does: slice what is free, all-to-all where a
  minor run is wanted next elsewhere, all-gather what is left;
- XLA (``--xla``): the collectives of an identity compiled with input and output shardings, by jax
  if it is installed; ``--cache FILE`` keeps them, since compiling 4,800 programs takes minutes;
- torch (``--torch``): the collectives of DTensor's redistribute, if torch is installed; it has no
  order of axes but the mesh's, so only pairs that it can express count.

A ratio is to the least there is: the bytes that the worst-off device lacks of its target block.
Bytes are what a device receives; in XLA's permutes that is a whole block.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import tvm_ffi
from rich.console import Console
from rich.progress import track
from rich.table import Table

import distir_ext as dx

Dims = tuple[tuple[int, ...], ...]
"""Mesh axes of each tensor dimension, major to minor."""

ROWS = COLUMNS = 1024
ITEM = 4
SIZE = float(ROWS * COLUMNS * ITEM)


def all_shardings(num_axes: int) -> Iterator[Dims]:
    """Every way to put mesh axes, in any order, on two dimensions."""
    for used in range(num_axes + 1):
        for chosen in itertools.permutations(range(num_axes), used):
            for cut in range(used + 1):
                yield chosen[:cut], chosen[cut:]


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


class Mesh:
    """A mesh over devices 0, 1, ..., and what moves cost on it."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.ids = list(range(math.prod(shape)))
        self.cluster = dx.Cluster.uniform().as_data()
        free = dx.Cluster.uniform(dx.Link(0.0, dx.NVLINK.bandwidth), launch=0.0).as_data()
        planner = tvm_ffi.get_global_func("distir.test.Planner")
        self._plan, self._plan_bytes = planner(self.cluster), planner(free)
        # Extents that every sharding divides.
        self._extents = [ROWS * len(self.ids), COLUMNS * len(self.ids)]

    def data(self, dims: Dims) -> list[object]:
        """A sharding as the library takes it."""
        return [[[[axis, 1, self.shape[axis]] for axis in axes] for axes in dims], [], "none"]

    def count(self, axes: tuple[int, ...]) -> int:
        """Devices of a group along axes."""
        return math.prod(self.shape[axis] for axis in axes)

    def least(self, source: Dims, target: Dims) -> float:
        """Bytes that the worst-off device lacks."""
        ends = (self.shape, self.ids, self.data(source), self.shape, self.ids, self.data(target))
        return float(
            tvm_ffi.get_global_func("distir.test.ExchangeCost")(self.cluster, *ends, SIZE)[1]
        )

    def planned(self, source: Dims, target: Dims, count_latency: bool) -> tuple[float, float]:
        """Bytes and seconds of a plan."""
        find = self._plan if count_latency else self._plan_bytes
        ends = (self.data(source), self.data(target))
        _, seconds, received = find(self.shape, self.ids, *ends, self._extents, SIZE)
        return float(received), float(seconds)

    def seconds(self, kind: str, devices: int, local: float) -> float:
        """Modelled time of one collective."""
        groups = [list(range(devices))]
        return float(
            tvm_ffi.get_global_func("distir.test.CollectiveSeconds")(
                self.cluster, kind, groups, local
            )
        )

    def greedy(self, source: Dims, target: Dims) -> tuple[float, float]:
        """Bytes and seconds without a search."""
        now, received, seconds = [list(axes) for axes in source], 0.0, 0.0

        def missing(d: int) -> list[int]:
            is_prefix = list(target[d][: len(now[d])]) == now[d]
            return list(target[d][len(now[d]) :]) if is_prefix else []

        def step() -> tuple[float, float] | None:
            local = SIZE / math.prod(self.count(tuple(axes)) for axes in now)
            for d in range(2):
                if missing(d) and missing(d)[0] not in now[0] + now[1]:
                    now[d].append(missing(d)[0])
                    return 0.0, 0.0
            for d, other in ((0, 1), (1, 0)):
                for length in range(len(now[other]), 0, -1):
                    run = now[other][-length:]
                    settled = common(now[other], target[other])
                    if missing(d)[:length] == run and len(now[other]) - length >= settled:
                        n = self.count(tuple(run))
                        now[d] += run
                        del now[other][-length:]
                        return local * (n - 1) / n, self.seconds("all_to_all", n, local)
            for d in range(2):
                settled = common(now[d], target[d])
                if len(now[d]) > settled:
                    n = self.count((now[d].pop(),))
                    return local * (n - 1), self.seconds("all_gather", n, local)
            return None

        while (cost := step()) is not None:
            received, seconds = received + cost[0], seconds + cost[1]
        return received, seconds


def compiled_by_xla(mesh: Mesh, source: Dims, target: Dims) -> list[tuple[str, int, float]]:
    """Kind, devices and bytes received of the collectives that XLA makes of a pair."""
    import jax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec
    from xla_collectives import collectives

    names = [f"a{axis}" for axis in range(len(mesh.shape))]
    jax_mesh = jax.make_mesh(
        mesh.shape,
        tuple(names),
        axis_types=(AxisType.Auto,) * len(names),
        devices=jax.devices()[: len(mesh.ids)],
    )

    def sharding(dims: Dims) -> NamedSharding:
        return NamedSharding(
            jax_mesh, PartitionSpec(*(tuple(names[a] for a in axes) or None for axes in dims))
        )

    x = jax.ShapeDtypeStruct((ROWS, COLUMNS), "float32", sharding=sharding(source))
    move = jax.jit(lambda x: x, out_shardings=sharding(target))
    return [
        (one.kind.replace("-", "_"), one.devices, one.sent)
        for one in collectives(move.lower(x).compile().as_text())
    ]


def by_xla(mesh: Mesh, found: list[tuple[str, int, float]]) -> tuple[float, float]:
    """Bytes and modelled seconds of XLA's collectives."""
    link, seconds, total = dx.NVLINK, 0.0, 0.0
    for kind, devices, sent in found:
        total += sent
        if kind == "collective_permute":
            message = link.latency + link.gap + sent / link.bandwidth
            seconds += mesh.cluster["launch"] + message if sent else 0
        else:
            share = {"all_gather": devices - 1, "all_reduce": 2 * (devices - 1) / devices}
            seconds += mesh.seconds(kind, devices, sent / share.get(kind, (devices - 1) / devices))
    return total, seconds


def by_torch(mesh: Mesh, source: Dims, target: Dims) -> tuple[float, float] | None:
    """Bytes and seconds of DTensor's plan; None where its placements cannot say the sharding.

    DTensor goes mesh axis by mesh axis (``torch.distributed.tensor._redistribute``): from shard to
    replicate by all-gather, to another dimension by all-to-all, from replicate to shard by a slice.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    try:
        from torch.distributed.tensor._redistribute import _gen_transform_infos_non_cached
    except ImportError:  # a private name, of another version
        return None
    if any(list(axes) != sorted(axes) for axes in (*source, *target)):
        return None
    import torch

    device_mesh = _torch_mesh(mesh.shape)

    def spec(dims: Dims) -> DTensorSpec:
        where = {axis: dim for dim, axes in enumerate(dims) for axis in axes}
        placements = tuple(
            Shard(where[axis]) if axis in where else Replicate() for axis in range(len(mesh.shape))
        )
        meta = TensorMeta(torch.Size((ROWS, COLUMNS)), (COLUMNS, 1), torch.float32)
        return DTensorSpec(device_mesh, placements, tensor_meta=meta)

    received = seconds = 0.0
    now = {axis: dim for dim, axes in enumerate(source) for axis in axes}
    for info in _gen_transform_infos_non_cached(spec(source), spec(target)):
        axis, (before, after) = info.mesh_dim, info.src_dst_placements
        n = mesh.shape[axis]
        local = SIZE / math.prod(mesh.shape[a] for a in now)
        if before.is_shard() and after.is_replicate():
            received += local * (n - 1)
            seconds += mesh.seconds("all_gather", n, local)
            now.pop(axis)
        elif before.is_shard() and after.is_shard() and before != after:
            received += local * (n - 1) / n
            seconds += mesh.seconds("all_to_all", n, local)
        elif before.is_replicate() and after.is_shard():
            now[axis] = after.dim
    return received, seconds


def _torch_mesh(shape: tuple[int, ...]) -> object:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "fake", store=FakeStore(), rank=0, world_size=math.prod(shape)
        )
    if torch.distributed.get_world_size() != math.prod(shape):
        torch.distributed.destroy_process_group()
        return _torch_mesh(shape)
    return DeviceMesh("cpu", torch.arange(math.prod(shape)).reshape(shape))


class Tally:
    """Sums over pairs."""

    def __init__(self) -> None:
        self.bytes = self.least = self.seconds = 0.0
        self.worst = 1.0
        self.pairs = self.at_least = 0
        self.below = 0

    def add(self, cost: tuple[float, float], least: float, ours: tuple[float, float]) -> None:
        """One pair that moves data: its cost, the least bytes, the cost of this project's plan."""
        received, seconds = cost
        self.pairs += 1
        self.bytes += received
        self.least += least
        self.seconds += seconds
        self.worst = max(self.worst, received / least)
        self.at_least += received <= least * (1 + 1e-9)
        self.below += seconds < ours[1] * (1 - 1e-6)


def main() -> None:
    """Prints a table per mesh."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--meshes", nargs="+", default=["8", "2,4", "2,2,2", "2,3,2"])
    parser.add_argument("--xla", action="store_true", help="compile every pair with jax")
    parser.add_argument("--cache", type=Path, help="a JSON file for what XLA has compiled")
    parser.add_argument("--torch", action="store_true", help="ask torch's DTensor for its plans")
    options = parser.parse_args()
    if options.xla:
        devices = max(math.prod(map(int, text.split(","))) for text in options.meshes)
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
        os.environ["JAX_PLATFORMS"] = "cpu"
    cache: dict[str, list[tuple[str, int, float]]] = {}
    if options.cache and options.cache.exists():
        cache = json.loads(options.cache.read_text())
    console = Console()
    for text in options.meshes:
        mesh = Mesh(tuple(map(int, text.split(","))))
        tallies: dict[str, Tally] = {}
        pairs = list(itertools.product(all_shardings(len(mesh.shape)), repeat=2))
        for source, target in track(pairs, f"mesh {text}", console=Console(stderr=True)):
            least = mesh.least(source, target)
            if least == 0:
                continue
            ours = mesh.planned(source, target, count_latency=True)
            costs = {
                "distir_ext": ours,
                "distir_ext, no latency": mesh.planned(source, target, count_latency=False),
                "greedy": mesh.greedy(source, target),
            }
            if options.xla:
                key = f"{text} {source} {target}"
                if key not in cache:
                    cache[key] = compiled_by_xla(mesh, source, target)
                costs["XLA"] = by_xla(mesh, cache[key])
            if options.torch and (theirs := by_torch(mesh, source, target)) is not None:
                costs["torch DTensor"] = theirs
            for name, cost in costs.items():
                tallies.setdefault(name, Tally()).add(cost, least, ours)
        table = Table(
            "planner", "pairs", "at the least", "bytes / least", "worst", "mean us", "below ours",
            title=f"mesh {text}, {len(pairs)} pairs",
        )  # fmt: skip
        for name, tally in tallies.items():
            below = "" if "no latency" in name else str(tally.below)
            table.add_row(
                name, str(tally.pairs), str(tally.at_least), f"{tally.bytes / tally.least:.2f}",
                f"{tally.worst:.2f}", f"{tally.seconds / tally.pairs * 1e6:.1f}", below,
            )  # fmt: skip
        console.print(table)
        if options.cache:
            options.cache.write_text(json.dumps(cache))


if __name__ == "__main__":
    main()
