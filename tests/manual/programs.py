"""Functions with manual regions, written with a BlockBuilder and run on CPU workers."""

from __future__ import annotations

import numpy as np
import tvm
from tests.targets import QUICK
from tvm import relax

import distir_ext as dx


def written(fn, **shapes):
    """A module whose main takes float32 tensors of these shapes, by name."""
    builder = relax.BlockBuilder()
    params = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in shapes.items()]
    with builder.function("main", params):
        with builder.dataflow():
            results = fn(*params)
            is_one = not isinstance(results, tuple)
            outputs = [builder.emit_output(each) for each in ((results,) if is_one else results)]
        builder.emit_func_output(outputs[0] if is_one else relax.Tuple(outputs))
    mod = builder.finalize()
    round_trip(mod)
    return mod


def round_trip(mod):
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


PHASES = ("propagated", "legalized")


def ran(session_of, mod, mesh, *inputs):
    """Runs a module after it was checked, printed and parsed in every phase."""
    lowered = dx.transform.PropagateSharding()(mod)
    for phase, transform in zip(PHASES, (None, dx.transform.LegalizeRedistribute()), strict=True):
        lowered = lowered if transform is None else transform(lowered)
        assert dx.testing.violations(lowered, phase) == []
        round_trip(lowered)
    lowered = dx.transform.LowerDistIR()(dx.transform.OptimizeCollectives()(lowered))
    assert dx.testing.violations(lowered, "lowered") == []
    round_trip(lowered)
    model = session_of(mesh.shape).load(dx.build(lowered, target=QUICK))
    results = model["main"](*inputs)
    if isinstance(results, tuple | list):
        return tuple(result.numpy() for result in results)
    return results.numpy()


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)
