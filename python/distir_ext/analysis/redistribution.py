"""Plan and cost of redistributing one tensor from a sharding to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import tvm
from tvm import relax

from distir_ext.analysis.costs import CollectiveCost
from distir_ext.analysis.estimate import estimate
from distir_ext.annotate.annotations import MeshTable
from distir_ext.annotate.patterns import annotate
from distir_ext.mesh.cluster import Cluster
from distir_ext.mesh.mesh import DimSharding, Mesh, as_mesh
from distir_ext.mesh.notation import Notation
from distir_ext.native.collective_records import names, on_dtensors
from distir_ext.passes import transform
from distir_ext.text.display import Printed
from distir_ext.text.errors.tracebacks import short_tracebacks

_COLLECTIVES = "relax.dist."


@dataclass(frozen=True)
class RedistributionStep:
    """One operator of a redistribution."""

    kind: str
    """``all_gather``, ``all_to_all``, ``exchange`` and so on; ``slice`` and others that only a
    device's own part takes part in send nothing."""

    axes: tuple[str, ...]
    """The mesh axes that it communicates over."""

    sharding: str
    """Sharding after the step, as ``"('dp', None)"``."""

    bytes_per_device: float
    """Bytes that a device sends; where they differ, the one that sends most."""

    seconds: float
    """By the cluster's links."""


@dataclass(frozen=True, repr=False)
class Redistribution(Printed):
    """The cheapest steps from one sharding to another; prints as a table."""

    mesh: Mesh
    """The devices."""

    cluster: Cluster
    """The links between the devices."""

    shape: tuple[int, ...]
    """Of the tensor."""

    dtype: str
    """Of its elements."""

    source: str
    """Sharding before, as ``"('dp', None)"``."""

    target: str
    """Sharding after."""

    steps: tuple[RedistributionStep, ...]
    """One after the other; none where nothing has to be done."""

    @property
    def bytes_per_device(self) -> float:
        """Bytes that a device sends in all steps."""
        return sum(step.bytes_per_device for step in self.steps)

    @property
    def seconds(self) -> float:
        """Seconds of all steps, one after the other."""
        return sum(step.seconds for step in self.steps)

    def as_data(self) -> dict[str, Any]:
        """Returns the redistribution as data for JSON."""
        return {
            "mesh": dict(zip(self.mesh.axis_names, self.mesh.shape, strict=True)),
            "cluster": repr(self.cluster),
            "shape": list(self.shape),
            "dtype": self.dtype,
            "source": self.source,
            "target": self.target,
            "steps": [asdict(step) for step in self.steps],
            "bytes_per_device": self.bytes_per_device,
            "seconds": self.seconds,
        }


@short_tracebacks
def redistribution(
    mesh: Mesh | Any,
    source: Sequence[DimSharding] | None,
    target: Sequence[DimSharding] | None,
    shape: Sequence[int],
    dtype: str = "float32",
    cluster: Cluster | None = None,
) -> Redistribution:
    """Plans how a tensor gets from one sharding to another on a mesh.

    The plan is that of LegalizeRedistribute in a program (docs/redistribution.md).

    Args:
        mesh: The devices.
        source: Sharding of the tensor, as in plans: an entry per dimension, or None for
            replicated.
        target: Sharding that it is to have.
        shape: The global shape. Dimensions that the axes do not divide are padded.
        dtype: The element type.
        cluster: The devices and links; a preset of H100s by default.

    Raises:
        ValueError: Dims do not have an entry for each dimension, name an axis that the mesh lacks,
            or name one twice; a dimension has fewer elements than shards; the cluster says nothing
            of its devices.
        TypeError: The mesh or dims have a wrong type.

    Example:
        >>> plan = redistribution(Mesh(dp=2, tp=4), ("dp", None), (None, "dp"), (1024, 1024))
        >>> [step.kind for step in plan.steps], plan.bytes_per_device  # half of the device's half
        (['all_to_all'], 1048576.0)
    """
    mesh = as_mesh(mesh, "the mesh of a redistribution")
    cluster = cluster or Cluster.preset("H100")
    shape = tuple(int(size) for size in shape)
    mod, table = _identity(shape, dtype), MeshTable(tvm.IRModule())
    for entity, dims in (("the source", source), ("the target", target)):
        table.mark(entity, mesh, dims, mod["main"].params[0].ty)  # refuses dims in these words
    mod = annotate(mod, mesh, {"x": source, "return": target})
    planned = tvm.transform.Sequential(
        [
            transform.SetCluster(cluster),
            transform.PropagateSharding(),
            transform.PadShards(),
            transform.LegalizeRedistribute(),
        ]
    )(mod)
    costs = estimate(transform.LowerDistIR()(planned), cluster)
    sent = iter([each for program in costs.programs for each in program.collectives])
    function, notation = planned["main"], Notation(planned)
    steps = tuple(_steps(function, notation, sent))
    left = notation.dims(function.params[0].ty)
    return Redistribution(
        mesh,
        cluster,
        shape,
        dtype,
        str(left),
        steps[-1].sharding if steps else str(left),
        steps,
    )


def _identity(shape: Sequence[int], dtype: str) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType(shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    return builder.get()


def _steps(
    function: relax.Function, notation: Notation, sent: Iterator[CollectiveCost]
) -> Iterator[RedistributionStep]:
    """The steps of a planned function, with the costs of those that send, in their order."""
    waiting = next(sent, None)
    for block in function.body.blocks:
        for binding in block.bindings:
            if not isinstance(binding.value, relax.Call):
                continue
            name = str(binding.value.op.name)
            kind = name.removeprefix(_COLLECTIVES).removeprefix("relax.")
            sharding = str(notation.dims(binding.var.ty))
            if waiting is not None and name == f"{_COLLECTIVES}{waiting.kind}":
                yield RedistributionStep(
                    kind, waiting.axes, sharding, waiting.bytes_per_device, waiting.seconds
                )
                waiting = next(sent, None)
            elif name != on_dtensors(names.view):  # the same shards by another name
                yield RedistributionStep(kind, (), sharding, 0.0, 0.0)
    assert waiting is None, f"the plan has no step for {waiting}"
