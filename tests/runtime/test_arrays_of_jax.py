"""Sharded arrays of JAX as inputs: each worker takes its shards without gathering."""

import subprocess
import sys

import pytest

pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

# A process of its own: how many devices a host is, is said once, before JAX starts.
PROGRAM = """
import jax, numpy as np
from tvm import relax
import distir_ext as dx
from jax.sharding import NamedSharding, PartitionSpec as P
from tests.targets import QUICK

jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"))
rng = np.random.default_rng(0)


def program(dtype):
    x = relax.Var("x", relax.TensorType((8, 12), dtype))
    w = relax.Var("w", relax.TensorType((8, 12), dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w], {"num_input": 1}):
        with builder.dataflow():
            result = builder.emit_output(relax.op.add(x, w))
        builder.emit_func_output(result)
    return builder.get()


SPECS = [P("a"), P("a", "b"), P("b", "a"), P(("a", "b")), P()]
for dtype, workers, specs in (("float32", "threads", SPECS), ("bfloat16", "processes", SPECS[:2])):
    values = (rng.standard_normal((2, 8, 12)) * 9).astype(dtype)
    plan = {"x": ("p", "q"), "w": ("q", "p")}
    exe = dx.build(dx.annotate(program(dtype), dx.Mesh(p=3, q=1), plan), target=QUICK)
    with dx.Session(3, workers=workers) as session:
        for spec in specs:
            x, w = (jax.device_put(each, NamedSharding(mesh, spec)) for each in values)
            found = session.load(exe, params={"w": w})["main"](x).numpy()
            np.testing.assert_array_equal(found, values[0] + values[1], err_msg=str(spec))

from distir_ext.params.host_array import host_array

x = jax.device_put(values[0], NamedSharding(mesh, P("a", "b")))
whole = host_array(x)
assert len(whole.parts) == 4
x.delete()
try:
    host_array(x)
except TypeError as error:
    assert "deleted" in str(error), error
else:
    raise AssertionError("a deleted array was taken")
print("done")
"""


@pytest.mark.large
def test_arrays_on_several_devices_are_taken():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "done"
