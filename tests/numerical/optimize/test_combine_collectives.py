"""Numbers of what `combine_collectives` has changed."""

import numpy as np
import tvm
from tests.numerical.optimize.checks import assert_keeps_numbers
from tests.optimize.checks import tally
from tests.optimize.programs import Everything

import distir_ext as dx

NAME = "combine_collectives"


def test_numbers():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 8), "float32")
    y = rng.standard_normal((4, 4, 6), "float32")
    z = rng.standard_normal((6, 8), "float32")
    wanted = (x.sum(1), y.sum(1), x, y, z, y.sum(1), z.sum(1))
    result = assert_keeps_numbers(Everything, dx.Mesh((2, 2), ("x", "y")), wanted, (x, y, z), NAME)
    assert tally(result, NAME).matched == 3
    lowered = dx.transform.LowerDistIR()(result)
    kinds = {each.kind: each.count for each in dx.analysis.collectives(lowered)}
    assert kinds == {"all_reduce": 1, "all_gather": 1, "reduce_scatter": 1}
    tvm.ir.assert_structural_equal(tvm.script.from_source(lowered.script()), lowered)
