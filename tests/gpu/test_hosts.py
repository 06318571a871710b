"""GPUs of two hosts, which are two agents of this one: programs, failures, what they are told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi
from safetensors.numpy import save_file
from tests.stages.programs import chain, chain_result, chain_values

import distir_ext as dx
from distir_ext import WorkerError
from distir_ext.params.host_array import host_array
from distir_ext.wire.tokens import TOKEN_VARIABLE

TOKEN = "of tests, and of no use elsewhere"
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def agents(tmp_path_factory, num_devices):
    """Two of them. Each has a GPU for each of two workers, or one for both; they share it, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TOKEN_VARIABLE, TOKEN)
        started = []
        for number in range(2):
            gpus = [(2 * number + i) % num_devices for i in range(2)]
            environment = {
                **os.environ,
                "CUDA_ON_HOST_BLOCKING": "1",
                "DISTIR_EXT_CUDA_DEVICES": ",".join(map(str, gpus)),
                "PYTHONPATH": os.pathsep.join([str(HERE / "on_workers"), *sys.path]),
            }
            if len(set(gpus)) == 2:  # the other host may have the same, which NCCL refuses
                environment["NCCL_HOSTID"] = f"host {number}"
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "distir_ext", "host", "--bind", "127.0.0.1:0"],
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=tmp_path_factory.mktemp("host"),
                    env=environment,
                )
            )
        yield [each.stdout.readline().removeprefix("listening at ").strip() for each in started]
        for each in started:
            each.terminate()
            each.wait(20)
            each.stdout.close()


def open_session(agents, **arguments):
    return dx.Session(4, ccl="nccl", workers=dx.Hosts(agents), **arguments)


def test_stages_on_two_hosts(target, agents, tmp_path):
    """A stage on each, tensor parallelism within it, weights from files; and a sum over all."""
    mesh = dx.Mesh((2, 2), ("pp", "tp"))
    plan = {r"w[02]": (None, "tp"), r"w[13]": ("tp", None)}
    mod = dx.annotate(chain([8, 16, 8, 16, 8], rows="n"), mesh, plan)
    staged = dx.build(dx.transform.AssignStages(mesh, "pp")(mod), target=target)
    x, weights = chain_values([8, 16, 8, 16, 8], rows=12)
    save_file(dict(weights), tmp_path / "weights.safetensors")
    flat = dx.Mesh((4,), ("tp",))
    plan = {r"w[02]": (None, "tp"), r"w[13]": ("tp", None)}
    across = dx.build(dx.annotate(chain([8, 16, 8, 16, 8], rows="n"), flat, plan), target=target)
    with open_session(agents, timeout=60) as session:
        for exe in (staged, across):
            main = session.load(exe, tmp_path / "weights.safetensors")["main"]
            np.testing.assert_allclose(
                main(x).numpy(), chain_result(x, weights), rtol=1e-3, atol=1e-5
            )
        pipeline = session.load(staged, weights)["main"].pipeline(6)
        np.testing.assert_allclose(
            pipeline(x).numpy(), chain_result(x, weights), rtol=1e-3, atol=1e-5
        )


def test_worker_of_the_second_host_raises(agents):
    """While the others wait for it on their GPUs."""
    x = host_array(np.ones(3, "float32"))
    waits = ["all_reduce", x.shard([0], [3]), "[[0,1,2,3]]", "sum", tvm_ffi.Shape([3])]
    functions = ["distir.test.on_gpu"] * 3 + ["distir.test.fail_on_gpu"]
    with open_session(agents, imports=["gpu_functions"]) as session:
        begin = time.monotonic()
        with pytest.raises(WorkerError, match=r"worker 3 .*ValueError: boom") as caught:
            session._workers.run("test", functions, [waits] * 3 + [[0.5]])
        assert time.monotonic() - begin < 10
        assert caught.value.host == agents[1]


def test_host_with_too_few_gpus(agents):
    # All three find out, and the first of them says so.
    message = r"worker [012] on host 127.0.0.1:\d+ did not start: .* lists 2 devices, .* 3 workers"
    with pytest.raises(RuntimeError, match=message):
        dx.Session(3, ccl="nccl", workers=dx.Hosts(agents[:1]))
