"""Hand-written kernels on CPU workers, placed in many ways, against the kernel on one device."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tests.rules.tir_kernels import NAMES, RULES, TWO_RESULTS
from tests.targets import QUICK
from tvm import relax
from tvm.script.parser import relax as R

import distir_ext as dx

from ..partitioned import to_arrays
from ..plans import MESHES, plans_of

# All but a kernel without parameters, and one without blocks, which TVM does not compile.
RUN = [name for name in NAMES if name not in ("fill", "plain_loops")]


def program(kernel, names):
    """A module in which each named function is one call of the kernel."""
    num_results = 2 if kernel in TWO_RESULTS else 1
    types = [R.Tensor([int(n) for n in p.ty.shape], p.ty.dtype.dtype) for p in kernel.params]
    builder = relax.BlockBuilder()
    kernel_var = builder.add_func(kernel, "kernel")
    for name in names:
        params = [relax.Var(f"p{i}", ty) for i, ty in enumerate(types[:-num_results])]
        with builder.function(name, params):
            call = relax.call_tir(kernel_var, params, types[-num_results:])
            with builder.dataflow():
                result = builder.emit_output(builder.emit(call))
            builder.emit_func_output(result)
    return builder.get(), [[int(n) for n in ty.shape] for ty in types[:-num_results]]


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
@pytest.mark.parametrize("kernel", [RULES[NAMES.index(name)][0] for name in RUN], ids=RUN)
def test_numbers(kernel, mesh, sample, session_of):
    plain, shapes = program(kernel, ["f"])
    plans = list(plans_of(shapes, mesh))[:: sample(3, 1, 1)]
    mod, _ = program(kernel, [f"f{i}" for i in range(len(plans))])
    rng = np.random.default_rng(0)
    arguments = [rng.uniform(0.5, 1.5, shape).astype("float32") for shape in shapes]
    machine = relax.VirtualMachine(tvm.compile(plain, QUICK), tvm.cpu())
    expected = to_arrays(machine["f"](*map(tvm.runtime.tensor, arguments)))
    for i, plan in enumerate(plans):
        mod = dx.annotate(mod, mesh, plan, func=f"f{i}")
    model = session_of(mesh.shape).load(dx.build(mod, QUICK))
    for i, plan in enumerate(plans):
        for ours, theirs in zip(to_arrays(model[f"f{i}"](*arguments)), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5, err_msg=str(plan))
