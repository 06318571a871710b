"""Executables of saved and loaded modules."""

import numpy as np
import tvm
from tests.script.constants import DTYPES, constant_of, constants_of

import distir_ext as dx


def test_loaded_executable_of_a_saved_module_gives_the_same_numbers():
    dtypes = [dtype for dtype in DTYPES if dtype != "float4_e2m1fn"]  # sessions move whole bytes
    saved = tvm.ir.save_json(dx.transform.PropagateSharding()(constants_of(dtypes)))
    x = np.arange(64, dtype="float32").reshape(8, 8)
    with dx.Session(2) as session:
        results = session.load(dx.build(tvm.ir.load_json(saved)))["main"](x)
        np.testing.assert_array_equal(results[0].numpy(), x)
        for dtype, result in zip(dtypes, results[1:], strict=True):
            assert result.numpy().tobytes() == constant_of(dtype).tobytes(), dtype
