"""Programs of JAX's users, imported, on shards of 3 x 2 and 2 x 2 workers, against JAX."""

import numpy as np
import pytest
from tests.targets import QUICK

import distir_ext as dx

pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

import jax
from tests.interop.jax.users_programs import CASES, arguments_of

MESHES = ((3, 2), (2, 2))
FEW = (
    "scan_of_a_recurrence",
    "grouped_query_attention",
    "nucleus_of_probabilities",
    "updated_rows",
    "halves",
)
# Rounding of the result, and of one partial sum per shard.
TOLERANCES = {"bfloat16": 2e-2, "float16": 2e-3}


def difference(found, wanted):
    """Says in what two arrays differ; nothing if they do not."""
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return f"{found.dtype}{found.shape}, not {wanted.dtype}{wanted.shape}"
    tolerance = TOLERANCES.get(found.dtype.name, 2e-5)
    if found.dtype.name in TOLERANCES:
        found, wanted = found.astype("float32"), wanted.astype("float32")
    if np.allclose(found, wanted, tolerance, tolerance, equal_nan=True):
        return ""
    return f"{found}, not {wanted}"


def test_users_programs_compute_what_jax_does(sample):
    failed = {}
    sessions = {shape: dx.Session(shape[0] * shape[1]) for shape in MESHES}
    for name in sample(FEW, tuple(CASES)[::4], tuple(CASES), tuple(CASES)):
        function, arguments = arguments_of(name)
        jitted = jax.jit(function)
        mod = dx.interop.jax.from_exported(jitted.lower(*arguments))
        wanted = [np.asarray(each) for each in jax.tree.leaves(jitted(*arguments))]
        names = [each.name for each in mod["main"].params]
        for shape in MESHES:
            sizes = dict(zip("ab", shape, strict=True))
            # Dimensions that have an element for each shard are sharded.
            plan = {
                name: (
                    *(axis if extent >= sizes[axis] else None for axis, extent in pairs),
                    *[None] * (array.ndim - len(pairs)),
                )
                for name, array in zip(names, arguments, strict=True)
                if (pairs := list(zip("ab", array.shape, strict=False)))
            }
            exe = dx.build(dx.annotate(mod, dx.Mesh(**sizes), plan), target=QUICK)
            found = sessions[shape].load(exe)["main"](*arguments)
            found = [found] if isinstance(found, dx.ShardedArray) else list(found)
            for index, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
                if text := difference(ours.numpy(), theirs):
                    failed[name, shape, index] = text
    for session in sessions.values():
        session.close()
    assert not failed, "\n".join(f"{key}: {text}" for key, text in failed.items())
