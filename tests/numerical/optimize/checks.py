"""Runs programs on CPU workers, optimised and not."""

import numpy as np
from tests.optimize.checks import optimized
from tests.targets import QUICK

import distir_ext as dx


def assert_same_numbers(program, mesh, plan, wanted, inputs, *names, tolerance=1e-5, **options):
    """Runs an annotated program on CPU workers, optimised and not; both give what NumPy gives.

    Args:
        program: An undistributed module with a function ``main``.
        mesh: A `dx.Mesh`.
        plan: As for `dx.annotate`.
        wanted: The result of ``main``, computed otherwise.
        inputs: The arguments of ``main``.
        names: The optimisations to run; all that are on, if none.
    """
    propagated = dx.transform.PropagateSharding()(dx.annotate(program, mesh, plan))
    legal = dx.transform.LegalizeRedistribute()(propagated)
    return assert_keeps_numbers(legal, mesh, wanted, inputs, *names, tolerance=tolerance, **options)


def assert_keeps_numbers(legal, mesh, wanted, inputs, *names, tolerance=1e-5, **options):
    """Checks a legalised program against `wanted`, before and after optimisation."""
    result = optimized(legal, *names, **options)
    with dx.Session(mesh) as session:
        for mod in (legal, result):
            got = session.load(dx.build(dx.transform.LowerDistIR()(mod), QUICK))["main"](*inputs)
            got = got if isinstance(got, list | tuple) else [got]
            each_wanted = wanted if isinstance(wanted, list | tuple) else [wanted]
            for left, right in zip(got, each_wanted, strict=True):
                np.testing.assert_allclose(left.numpy(), right, rtol=tolerance, atol=tolerance)
    return result
