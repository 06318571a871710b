"""How worker processes start: what they import, and what is there when it is needed."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx


def modules_that_a_worker_imports(folder, arguments=""):
    """Names of modules; of torch it is known whether it is looked for."""
    torch = (
        "import sys; print(\"import 'torch'\", file=sys.stderr); raise ImportError('it is none')\n"
    )
    (folder / "torch.py").write_text(torch)
    (folder / "of_user.py").write_text("import distir_ext\nassert distir_ext.Mesh\n")
    code = (
        f"import os, sys\nsys.path.insert(0, {str(folder)!r})\n"
        "import distir_ext as dx\n"
        "print('started', file=sys.stderr, flush=True)\n"
        "os.environ['PYTHONVERBOSE'] = '1'\n"
        f"dx.Session(1, workers='processes'{arguments}).close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^import '([\w.]+)'", done.stderr.partition("started")[2], re.MULTILINE))


def test_a_worker_imports_neither_tvm_nor_torch(tmp_path):
    """Each of them takes longer than all else."""
    found = modules_that_a_worker_imports(tmp_path)
    assert {"tvm_ffi", "distir_ext._workers.worker_process"} <= found
    of_others = {name for name in found if re.match(r"(tvm|torch|rich|distir_ext)(\.|$)", name)}
    assert {name for name in of_others if not re.match(r"distir_ext\._", name)} == set()


def test_modules_of_users_find_all_of_it(tmp_path):
    """They are imported after TVM, into a whole distir_ext."""
    found = modules_that_a_worker_imports(tmp_path, ", imports=['of_user']")
    assert {"of_user", "torch", "tvm", "tvm.relax", "distir_ext"} <= found


@I.ir_module
class Unique:
    @R.function
    def main(x: R.Tensor((6,), "int64")):
        R.func_attr({"num_input": 1})
        y = R.unique(x, sorted=True)
        return y


def test_functions_that_tvm_has_in_python(tmp_path):
    """TVM computes R.unique with NumPy."""
    exe = dx.build(dx.annotate(Unique, dx.Mesh((1,), ("a",)), {"x": (None,)}))
    exe.export_library(str(tmp_path / "library.so"))
    x = np.array([3, 1, 3, 2, 2, 7])
    with dx.Session(1, workers="processes") as session:
        for form in (tmp_path / "library.so", exe):
            y = session.load(form)["main"](x)
            np.testing.assert_array_equal(y.numpy(), np.unique(x))
