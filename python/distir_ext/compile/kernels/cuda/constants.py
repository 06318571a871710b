"""Replaces the constants of a GPU program by calls that return copies on the worker's device.

Each is copied once, in the order of the worker's stream, which TVM's virtual machine would not do
(``src/target/gpu/carry_constants.cc``).
"""

from __future__ import annotations

import tvm
import tvm_ffi


def carry_constants(target: tvm.target.Target) -> tvm.transform.Pass:
    """Constants become calls of a module that copies them (``src/target/gpu``).

    Args:
        target: Its kind of device is where they are copied to.
    """
    carry = tvm_ffi.get_global_func("distir.target.CarryConstants")
    device_type = int(target.get_target_device_type())

    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        return carry(mod, device_type)

    return tvm.transform.module_pass(apply, opt_level=0, name="CarryConstants")
