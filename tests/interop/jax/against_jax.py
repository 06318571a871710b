"""Imports functions of JAX, runs them on shards, and compares the results with JAX's."""

import numpy as np
from tests.targets import QUICK

import distir_ext as dx


def check(function, *arguments, plan=None, devices=2, exact=False, tolerance=2e-5):
    """Compares a function's results; by default first dimensions are sharded.

    Args:
        function: Of arrays.
        arguments: Arrays of NumPy or JAX.
        plan: The dims of parameters on the mesh ``x``.
        devices: How many there are.
        exact: Whether bits are compared, and not numbers.
        tolerance: Relative and absolute, of numbers.
    """
    import jax

    jitted = jax.jit(function)
    mod = dx.interop.jax.from_exported(jitted.lower(*arguments))
    arrays = [np.asarray(each) for each in arguments]
    names = [each.name for each in mod["main"].params]
    if plan is None:
        plan = {
            name: ("x", *[None] * (each.ndim - 1))
            for name, each in zip(names, arrays, strict=True)
            if each.ndim
        }
    exe = dx.build(dx.annotate(mod, dx.Mesh(x=devices), plan), target=QUICK)
    with dx.Session(devices) as session:
        found = session.load(exe)["main"](*arrays)
    wanted = jax.tree.leaves(jitted(*arguments))
    found = [found] if isinstance(found, dx.ShardedArray) else list(found)
    assert len(found) == len(wanted)
    for index, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        ours, theirs = ours.numpy(), np.asarray(theirs)
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), index
        if exact:
            assert ours.tobytes() == theirs.tobytes(), f"result {index}: {ours}, not {theirs}"
            continue
        if ours.dtype.name == "bfloat16":
            ours, theirs = ours.astype("float32"), theirs.astype("float32")
        message = f"result {index}"
        np.testing.assert_allclose(ours, theirs, tolerance, tolerance, err_msg=message)
