"""Runs JAX on 8 devices of the host: python -m tests.interop.jax.on_devices TARGET NAME...

For every named program of programs.py it writes what jax.export exports, and the arguments and
results; and what comes back from here: the program imported, legalized, exported again and run.
"""

import os
import pickle
import sys
import traceback
from pathlib import Path

# Compiling is most of the time of such small programs.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true"
)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from jax import export
from jaxlib import xla_client
from tests.interop.jax.manual_programs import CASES, on

import distir_ext as dx


def there_and_back(text, arguments, mesh):
    """Results of the program that comes back, run as jax.jit runs it; and its text."""
    mod = dx.interop.jax.from_stablehlo(text)
    legalized = dx.lower(mod, until="legalized")
    exported = dx.interop.jax.to_exported(legalized)
    plain = jax.sharding.Mesh(mesh.devices, mesh.axis_names)
    given = jax.device_put(jax.tree.leaves(arguments), list(exported.in_shardings_jax(plain)))
    of_jit = jax.tree.leaves(jax.jit(exported.call)(*given))
    compiled = compile_text(dx.interop.jax.to_stablehlo(legalized))
    of_text = compiled.execute_sharded(given).disassemble_into_single_device_arrays()
    for shards, array in zip(of_text, of_jit, strict=True):
        by_device = {shard.device: np.asarray(shard.data) for shard in array.addressable_shards}
        for shard in shards:
            (device,) = shard.devices()
            np.testing.assert_array_equal(np.asarray(shard), by_device[device])
    return [np.asarray(each) for each in of_jit], str(exported.mlir_module())


def compile_text(text):
    """An executable of jaxlib's compiler from text."""
    options = xla_client.CompileOptions()
    options.num_partitions = 8
    options.executable_build_options.num_partitions = 8
    options.executable_build_options.use_spmd_partitioning = True
    options.executable_build_options.use_shardy_partitioner = True
    devices = xla_client.DeviceList(tuple(jax.devices()))
    return jax.devices()[0].client.compile_and_load(text, devices, options)


def main(target, names):
    for name in names:
        mesh, function, arguments, specs = CASES[name][0]()
        with jax.set_mesh(mesh):
            given = jax.device_put(arguments, on(mesh, specs))
            jitted = jax.jit(function)
            text = str(export.export(jitted)(*given).mlir_module())
            results = [np.asarray(each) for each in jax.tree.leaves(jitted(*given))]
        try:
            back = there_and_back(text, arguments, mesh)
        except Exception:
            back = traceback.format_exc()
        leaves = jax.tree.leaves(arguments)
        (target / name).write_bytes(pickle.dumps((text, leaves, results, back)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
