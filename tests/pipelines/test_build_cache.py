"""Programs that were built before come from the folder of DISTIR_EXT_CACHE, and are the same."""

import os
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tvm
from tests.targets import QUICK
from tvm import relax
from tvm.script.parser import relax as R

import distir_ext as dx
from distir_ext import pipelines
from distir_ext.compile import build_cache, cache_folder, entry
from distir_ext.compile.cache_folder import CacheFolder

MESH = dx.Mesh((2,), ("x",))


def program(scale: float = 2.0, name: str = "y") -> tvm.IRModule:
    """Makes an annotated program."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((8, 16), "float32"))
    w = relax.Var("w", R.Tensor((16, 16), "float32"))
    constant = relax.const(np.full((16,), scale, "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, w), name)
            y = builder.emit(relax.op.add(y, constant))
            result = builder.emit_output(relax.op.nn.gelu(y))
        builder.emit_func_output(result)
    plan = {"x": (None, "x"), "w": ("x", None)}
    return dx.annotate(builder.get(), MESH, plan, inputs=["x"])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTIR_EXT_CACHE", str(tmp_path / "new" / "cache"))
    return tmp_path / "new" / "cache"


@pytest.fixture
def built(monkeypatch):
    """The builds that went through the passes."""
    calls = []
    make = entry.build_executable

    def counted(*args, **options):
        calls.append(args)
        return make(*args, **options)

    monkeypatch.setattr(entry, "build_executable", counted)
    return calls


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def test_a_program_of_the_cache_is_the_same(folder, built, caplog, tmp_path):
    x, w = (np.random.default_rng(0).normal(size=s).astype("float32") for s in ((8, 16), (16, 16)))
    seen = []
    for workers in ("threads", "processes"):
        with dx.pass_reports() as reports, caplog.at_level("INFO", "distir_ext.tvm"):
            caplog.clear()
            executable = dx.build(program(), QUICK)
        executable.export_library(str(tmp_path / "program.so"))
        results = []
        for each in (executable, str(tmp_path / "program.so")):
            with dx.Session(MESH, workers=workers) as session:
                model = session.load(each, params={"w": w})
                results.append(model["main"](x).numpy())
                profile = model["main"].profile(x, repeat=1)
        told = [(each.name, each.done, each.skipped) for each in reports]
        steps = sorted({event.name for event in profile.events})
        described = (executable.distir_signature, executable.as_text(), executable.stats())
        sent = dx.analysis.collectives(executable)
        seen.append((told, steps, described, sent, caplog.messages, type(executable), results))
    assert len(built) == 1
    assert seen[0][:-1] == seen[1][:-1]
    assert seen[0][0]  # reports
    np.testing.assert_array_equal(seen[0][-1], seen[1][-1])
    (file,) = entries(folder)
    assert file.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_second_build_takes_a_tenth(folder, built):
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((64, 64), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for size in range(2, 14):
                wide = builder.emit(relax.op.concat([y] * size, 1))
                part = builder.emit(relax.op.strided_slice(wide, [1], [0], [64]))
                y = builder.emit(relax.op.nn.softmax(part))
            result = builder.emit_output(relax.op.negative(y))
        builder.emit_func_output(result)
    mod = dx.annotate(builder.get(), MESH, {"x": ("x", None)})
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        dx.build(mod, QUICK)
        seconds.append(time.process_time() - begin)
    assert len(built) == 1
    assert min(seconds[1:]) < 0.1 * seconds[0], seconds


@pytest.mark.large
def test_what_a_program_follows_from_is_its_key(folder, built, monkeypatch, tmp_path):
    """Each of these builds differs from all others in one thing."""
    chosen = pipelines.load({"passes": {"OptimizeCollectives": {"combine_bytes": 5}}})
    without = pipelines.load({"passes": {"OptimizeCollectives": {"enabled": False}}})
    slow = dx.Cluster(MESH, links={"x": dx.Link(latency=1.0, bandwidth=1e6)})
    builds = {
        "plain": lambda: dx.build(program(), QUICK),
        "constant": lambda: dx.build(program(3.0), QUICK),
        "name": lambda: dx.build(program(name="z"), QUICK),
        "target": lambda: dx.build(program(), {"kind": "llvm", "opt-level": 1}),
        "cluster": lambda: dx.build(program(), QUICK, slow),
        "blas": lambda: dx.build(program(), QUICK, blas=False),
        "pipeline": lambda: dx.build(program(), QUICK, pipeline=chosen),
        "disabled": lambda: dx.build(program(), QUICK, pipeline=without),
        "devices": lambda: dx.build(program(), QUICK, devices=2),
    }

    def under(**context):
        check = dx.CheckPasses(broken=False)
        with tvm.transform.PassContext(instruments=[check], **context):
            dx.build(program(), QUICK)

    builds["context"] = lambda: under(opt_level=1)
    builds["config"] = lambda: under(config={"tirx.disable_vectorize": True})
    builds["no pass"] = lambda: under(disabled_pass=["FuseOps"])
    for name, build in builds.items():
        before = len(built)
        build()
        assert len(built) == before + 1, name
        build()
        assert len(built) == before + 1, name
    dx.register_rule("some.function", "a b -> a b")
    builds["plain"]()
    assert len(built) == len(builds) + 1
    assert dx.unregister_rule("some.function")
    builds["plain"]()  # is known
    dx.build(program(), QUICK, reshards="error")
    assert len(built) == len(builds) + 1
    for version in ("__version__", "_sources"):
        other = "0" if version == "__version__" else lambda: "0"
        monkeypatch.setattr(build_cache, version, other)
        before = len(built)
        builds["plain"]()
        assert len(built) == before + 1, version


def test_where_lines_stand_in_a_file_does_not_matter(folder, built, tmp_path):
    text = """
from tvm.script.parser import ir as I, relax as R
@I.ir_module
class Model:
    @R.function
    def main(x: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        y = R.add(x, x)
        return y
"""
    for lines in ("", "\n\n"):
        (tmp_path / "model.py").write_text(lines + text)
        model = runpy.run_path(str(tmp_path / "model.py"))["Model"]
        dx.build(dx.annotate(model, MESH, {"x": ("x", None)}), QUICK)
    assert len(built) == 1


@pytest.mark.large
def test_what_no_text_says_is_built_each_time(
    folder, built, caplog, registered, tmp_path, monkeypatch
):
    @registered("leave_it", phase="lowered", enabled=False)
    def leave_it(mod, matches):
        return mod

    own = pipelines.load({"passes": {"leave_it": {"enabled": True}}})
    name = "relax.nn.gelu"  # as if this process had defined it

    def defined_here():
        with monkeypatch.context() as patch:
            patch.setattr(build_cache, "_OPERATORS", build_cache._OPERATORS - {name})
            dx.build(program(), QUICK)

    def seen():
        with tvm.transform.PassContext(instruments=[tvm.instrument.PassTimingInstrument()]):
            dx.build(program(), QUICK)

    builds = {
        "a dump of its passes": lambda: dx.build(program(), QUICK, dump_dir=tmp_path / "dump"),
        "the pass 'leave_it'": lambda: dx.build(program(), QUICK, pipeline=own),
        "PassTimingInstrument": seen,
        f"the operator {name!r}": defined_here,
        "the option 'tir_pipeline'": lambda: dx.build(program(), QUICK, tir_pipeline="default"),
        "the option 'tir_pipeline' of": lambda: dx.build(program(), QUICK, tir_pipeline=None),
    }
    for reason, build in builds.items():
        for _ in range(2):
            before = len(built)
            caplog.clear()
            with caplog.at_level("INFO", "distir_ext.cache"):
                build()
            assert len(built) == before + 1
            assert reason in caplog.text
    assert entries(folder) == []


@pytest.mark.large
def test_damage_is_built_anew(folder, built):
    def expect_anew():
        before = len(built)
        dx.build(program(), QUICK)
        assert len(built) == before + 1

    expect_anew()
    (file,) = entries(folder)
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    damages = [b"", whole[:-1], rng.bytes(len(whole))]
    for at in (0, len(whole) - 1):
        damages.append(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    for damage in damages:
        file.write_bytes(damage)
        expect_anew()
        assert file.read_bytes()[:32] != damage[:32] or len(damage) != len(whole)
    # One of a right sum that is no program.
    CacheFolder(folder, 1 << 20).write(file.name.removeprefix("program-"), b"no program")
    expect_anew()
    # Another program's file.
    dx.build(program(3.0), QUICK)
    (other,) = (each for each in entries(folder) if each != file)
    file.write_bytes(other.read_bytes())
    expect_anew()
    before = len(built)
    dx.build(program(), QUICK)
    assert len(built) == before


def test_others_cannot_put_a_program_into_the_cache(folder, built):
    dx.build(program(), QUICK)
    (file,) = entries(folder)
    for mode in (0o777, 0o770, 0o702):
        folder.chmod(mode)
        with pytest.raises(ValueError, match=re.escape(f"{folder} belongs to somebody else, or")):
            dx.build(program(), QUICK)
    folder.chmod(0o755)
    # Files that others may write to, and links, count for nothing.
    file.chmod(0o666)
    dx.build(program(), QUICK)
    file.rename(folder / "elsewhere")
    file.symlink_to(folder / "elsewhere")
    dx.build(program(), QUICK)
    assert len(built) == 3
    if os.geteuid() == 0:
        os.chown(folder, 1, 1)
        with pytest.raises(ValueError, match="belongs to somebody else"):
            dx.build(program(), QUICK)


def test_the_files_used_longest_ago_go_first(tmp_path):
    folder = CacheFolder(tmp_path / "cache", 3000)
    for index, key in enumerate("abcd"):
        assert folder.write(key, bytes(900))
        for each in tmp_path.glob("cache/program-*"):
            os.utime(each, (index, index) if each.name.endswith(key) else None)
            break
        if key == "c":
            os.utime(tmp_path / "cache" / "program-b", (1, 1))
            os.utime(tmp_path / "cache" / "program-c", (2, 2))
            os.utime(tmp_path / "cache" / "program-a", (0, 0))
            assert folder.read("a") is not None  # which is used last now
    assert [folder.read(key) is not None for key in "abcd"] == [True, False, True, True]
    assert not folder.write("e", bytes(3000))
    left = tmp_path / "cache" / ".unfinished-0"
    left.write_bytes(b"0")
    os.utime(left, (0, 0))
    assert folder.write("f", b"")
    assert not left.exists()


PROCESS = """
import runpy, sys
Folder = runpy.run_path(sys.argv[1])["CacheFolder"]
from pathlib import Path
folder = Folder(Path(sys.argv[2]), 20_000)
for turn in range(200):
    key = str(turn % 5)
    content = folder.read(key)
    if content is not None:
        assert len(set(content)) == 1 and len(content) == 5000 + content[0], len(content)
    folder.write(key, bytes([int(sys.argv[3])]) * (5000 + int(sys.argv[3])))
"""


def test_several_processes_at_once(tmp_path):
    script = [sys.executable, "-c", PROCESS, cache_folder.__file__, str(tmp_path / "cache")]
    running = [
        subprocess.Popen([*script, str(each)], stderr=subprocess.PIPE, text=True)
        for each in range(4)
    ]
    for each in running:
        assert (each.communicate(timeout=60)[1], each.returncode) == ("", 0)
    files = list((tmp_path / "cache").iterdir())
    assert all(each.name.startswith("program-") for each in files)
    assert sum(each.stat().st_size for each in files) <= 20_000


def test_a_folder_that_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for name, why in (("file", "Not a directory"), (300 * "a", "File name too long")):
        monkeypatch.setenv("DISTIR_EXT_CACHE", str(tmp_path / name))
        with pytest.raises(OSError, match=f"DISTIR_EXT_CACHE is '.*': {why}"):
            dx.build(program(), QUICK)
    monkeypatch.setenv("DISTIR_EXT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DISTIR_EXT_CACHE_BYTES", "4 GB")
    with pytest.raises(ValueError, match="DISTIR_EXT_CACHE_BYTES is '4 GB', not a number of bytes"):
        dx.build(program(), QUICK)
