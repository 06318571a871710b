"""Pipelines that configurations choose, and passes that are not of this package."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tvm
from tests.phases.programs import annotated
from tvm import relax
from tvm.relax.dpl import is_op, wildcard

import distir_ext as dx
from distir_ext import pipelines
from distir_ext.pipelines import configuration

DEFAULTS = Path(pipelines.__file__).parent / "default.yaml"


def two_layers(num_layers=4):
    """Layers that repeat themselves, unannotated."""
    builder = relax.BlockBuilder()
    shapes = {"up": (16, 32), "down": (32, 16)}
    x = relax.Var("x", relax.TensorType((8, 16), "float32"))
    weights = {
        f"layers.{i}.{name}": relax.Var(f"layers.{i}.{name}", relax.TensorType(shape, "float32"))
        for i in range(num_layers)
        for name, shape in shapes.items()
    }
    with builder.function("main", [x, *weights.values()], {"num_input": 1}):
        value = x
        for i in range(num_layers):
            up, down = weights[f"layers.{i}.up"], weights[f"layers.{i}.down"]
            hidden = builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(value, up))))
            value = builder.emit(relax.op.add(value, builder.emit(relax.op.matmul(hidden, down))))
        builder.emit_func_output(value)
    return builder.get()


def tensor_parallel(size=2):
    plan = {".*up": (None, "tp"), ".*down": ("tp", None)}
    return dx.annotate(two_layers(), dx.Mesh(tp=size), plan)


@pytest.fixture
def configured(tmp_path):
    """Writes a configuration."""

    def write(text, name="mine.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def run(executable, devices, mod):
    rng = np.random.default_rng(0)
    shapes = [[int(size) for size in param.ty.shape] for param in mod["main"].params]
    # Rows of weights that have a norm of about 1: sums in any order differ by rounding only.
    x, *weights = (
        rng.standard_normal(shape, "float32") / np.float32(np.sqrt(shape[0])) for shape in shapes
    )
    with dx.Session(devices) as session:
        return session.load(executable, params=weights)(x).numpy()


def test_the_defaults_are_those_of_the_file():
    assert pipelines.default_text() == DEFAULTS.read_text("utf-8")
    assert str(pipelines.load(DEFAULTS)) == str(pipelines.load())
    listed = [each.name for each in pipelines.load()]
    assert listed.index("OutlineRepeats") < listed.index("PropagateSharding")


def test_the_last_configuration_wins_and_the_others_stay(configured):
    first = configured(
        "passes:\n  OptimizeCollectives: {combine_bytes: 16, sequence_bytes: 32}\n"
        "  OutlineRepeats: {enabled: yes}\n",
        "first.yaml",
    )
    second = configured("passes:\n  OptimizeCollectives:\n    combine_bytes: 64\n", "second.yaml")
    pipeline = pipelines.load(first, second, {"passes": {"OutlineRepeats": {"enabled": False}}})
    assert pipeline["OptimizeCollectives"].options == {"combine_bytes": 64, "sequence_bytes": 32}
    assert not pipeline["OutlineRepeats"].is_enabled
    assert "combine_bytes=64" in str(pipeline)
    assert "combine_bytes=64" in pipeline._repr_html_()


def test_an_optional_pass_runs_once(configured):
    mod = tensor_parallel()
    path = configured("passes:\n  OutlineRepeats: {enabled: true, min_operators: 4}\n")
    pipeline = pipelines.load(path)
    lowered = dx.lower(mod, pipeline=pipeline)
    assert "layer" in [name.name_hint for name in lowered.get_global_vars()]
    with dx.pass_reports() as reports:
        executable = dx.build(lowered, pipeline=path)
    assert "OutlineRepeats" not in [each.name for each in reports if not each.skipped]
    expected = run(dx.build(mod), 2, mod)
    np.testing.assert_allclose(run(executable, 2, mod), expected, rtol=1e-5, atol=1e-4)


def test_stages_are_a_pass_of_a_pipeline(configured):
    path = configured("passes:\n  AssignStages: {enabled: true, axis: pp}\n")
    mod = dx.annotate(two_layers(), dx.Mesh(pp=2, tp=2), {".*up": (None, "tp")})
    names = [name.name_hint for name in dx.lower(mod, pipeline=path).get_global_vars()]
    assert {"main_stage0", "main_stage1"} <= set(names)
    found = run(dx.build(mod, pipeline=path), 4, mod)
    expected = run(dx.build(mod), 4, mod)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_what_is_disabled_does_not_run(configured):
    mod = tensor_parallel()
    path = configured(
        "passes:\n  OptimizeCollectives: {enabled: false}\n  DispatchMatmul: {enabled: false}\n"
    )
    with dx.pass_reports() as reports:
        executable = dx.build(mod, pipeline=path)
    names = {each.name for each in reports}
    assert names.isdisjoint({"OptimizeCollectives", "DispatchMatmul"})
    assert {"ShareResults", "LowerDistIR"} <= names
    expected = run(dx.build(mod), 2, mod)
    np.testing.assert_allclose(run(executable, 2, mod), expected, rtol=1e-5, atol=1e-4)


def test_options_reach_the_pass():
    mod = tensor_parallel()
    pipeline = pipelines.load({"passes": {"OptimizeCollectives": {"disable": "hoist_gathers"}}})
    lowered = dx.lower(mod, pipeline=pipeline)
    names = [each.name for each in dx.analysis.optimizations(lowered)]
    assert "hoist_gathers" not in names
    assert "share_collectives" in names
    # What a target chooses stays where nothing is stated.
    with dx.pass_reports() as reports:
        dx.build(mod, pipeline=pipeline)
    (report,) = [each for each in reports if each.name == "OptimizeCollectives"]
    assert "sequence_parallel" in {*report.done, *report.skipped}


@pytest.mark.parametrize("phase", ["annotated", "propagated", "legalized", "lowered", "runtime"])
def test_a_pass_is_given_a_module_of_its_phase(registered, phase):
    seen = []

    @registered("look", phase=phase)
    def look(mod, matches, *, times: int = 1):
        """Looks."""
        seen.append(dx.phase(mod))
        matches.add("looks", times)
        matches.skip("nothing to see", "looks")
        return mod

    pipeline = pipelines.load({"passes": {"look": {"times": 3}}})
    with dx.pass_reports() as reports:
        dx.build(annotated(), pipeline=pipeline)
    assert seen == [phase]
    (report,) = [each for each in reports if each.name == "look"]
    assert (report.done, report.skipped) == ({"looks": 3}, {"looks": {"nothing to see": 1}})
    assert "pass=look matches=3 skipped=1: 3 looks" in report.log_line()
    dx.build(annotated())  # which has this package's passes alone
    assert seen == [phase]


def test_passes_of_others_run_in_the_order_of_the_configuration(registered):
    seen = []
    for name in ("one", "two", "three"):

        def look(mod, matches, name=name):
            seen.append(name)
            return mod

        registered(name, phase="lowered", enabled=name != "three")(look)
    pipeline = pipelines.load({"passes": {"two": {}, "one": {}}})
    lowered = dx.lower(annotated(), pipeline=pipeline)
    assert seen == ["two", "one"]
    dx.build(lowered, pipeline=pipeline)
    assert seen == ["two", "one"]
    assert "three" in str(pipeline)


def test_a_module_that_is_too_far_is_reported(registered):
    @registered("early", phase="propagated")
    def early(mod, matches):
        raise AssertionError

    lowered = dx.lower(annotated())
    with dx.pass_reports() as reports:
        dx.build(lowered, pipeline=pipelines.load())
    (report,) = [each for each in reports if each.name == "early"]
    assert report.skipped == {"module": {"the module is lowered already": 1}}


def test_a_pass_that_returns_no_module_is_named(registered):
    @registered("empty", phase="lowered")
    def empty(mod, matches):
        return None

    with pytest.raises(TypeError, match="pass 'empty' returned a NoneType, not an IRModule"):
        dx.lower(annotated(), pipeline=pipelines.load())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("passes:\n  PadShard: {}\n", r"line 2, passes\.PadShard: .* did you mean 'PadShards'"),
        (
            "passes:\n  OutlineRepeats:\n    min_operator: 4\n",
            r"line 3, passes\.OutlineRepeats\.min_operator: .* did you mean 'min_operators'",
        ),
        (
            "passes:\n  OutlineRepeats: {min_operators: many}\n",
            r"line 2, .*min_operators: expected int, got str, in 'many'",
        ),
        ("passes:\n  OutlineRepeats: {enabled: 1}\n", r"enabled: expected bool, got int, in 1"),
        (
            "passes:\n  OutlineRepeats: {enabled: true, min_operators: 0}\n",
            r"line 2, passes\.OutlineRepeats: min_operators is 0",
        ),
        (
            "passes:\n  OptimizeCollectives: {disable: [hoist]}\n",
            r"line 2, passes\.OptimizeCollectives: .*`hoist` of collectives; there are share_",
        ),
        (
            "passes:\n  PadShards: {enabled: false}\n",
            "PadShards cannot be left out, since passes behind it need what it does",
        ),
        ("passes:\n  PadShards: {phase: lowered}\n", "phase of PadShards is propagated, not 'low"),
        ("passes:\n  PadShards: {target: cuda}\n", "target of PadShards is any, not 'cuda'"),
        ("passes:\n  AssignStages: {enabled: true}\n", "AssignStages needs axis where it is en"),
        ("pases: {}\n", "line 1, pases: there is no such key, .* did you mean 'passes'"),
        ("passes: [PadShards]\n", "passes: a mapping is expected, not"),
        ("- passes\n", "mine.yaml: a mapping is expected, not"),
        ("passes:\n  PadShards: {}\n  PadShards: {}\n", "line 3, column 3: 'PadShards' occurs tw"),
        ("passes: &a\n  PadShards: *a\n", "line 1, column 9: anchors and aliases are not read"),
        ("passes:\n  1: {}\n", "line 2, column 3: a key is no text"),
        ("passes: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        ("passes: {\n", "line 2, column 1: while parsing a flow node expected the node content"),
        ("{}\n---\n{}\n", "expected a single document"),
        ("[" * 5000, "nested too deeply"),
        ("passes: 2001-99-99\n", "month must be in 1..12"),
        ("a" * (1 << 18) + "b", "has more than 262144 bytes"),
        ("passes: \x01\n", "special characters are not allowed"),
    ],
)
def test_wrong_configurations(configured, text, message):
    with pytest.raises(ValueError, match=message):
        pipelines.load(configured(text))


def test_long_digits_are_read_in_linear_time(configured):
    """Texts that may be numbers were compared with the form of one again from each digit on."""
    begin = time.process_time()
    with pytest.raises(ValueError, match="a mapping is expected"):
        pipelines.load(configured("passes: " + "9" * 40_000 + "x\n"))
    assert time.process_time() - begin < 2  # 0.1, and 35 before


def test_what_says_nothing_changes_nothing(configured):
    for text in ("", "passes:\n", "passes:\n  PadShards:\n"):
        assert str(pipelines.load(configured(text))) == str(pipelines.load())


def test_numbers_are_read_as_python_has_them(registered, configured):
    @registered("numbers", phase="lowered")
    def numbers(mod, matches, *, large: float = 0.0, names: dict[str, int] | None = None):
        return mod

    pipeline = pipelines.load(configured("passes:\n  numbers: {large: 1e6, names: {a: 2}}\n"))
    assert pipeline["numbers"].options == {"large": 1e6, "names": {"a": 2}}
    with pytest.raises(ValueError, match=r"names: expected int, got str - at \$\[...\]"):
        pipelines.load({"passes": {"numbers": {"names": {"a": "b"}}}})


@pytest.mark.parametrize(
    ("stated", "error", "message"),
    [
        ({"name": "PadShards", "phase": "lowered"}, ValueError, "is a pass of distir_ext; choose"),
        ({"name": "mine", "phase": "lower"}, ValueError, "which there is not; did you mean 'low"),
        ({"name": "", "phase": "lowered"}, ValueError, "a pass needs a name"),
    ],
)
def test_wrong_registrations(stated, error, message):
    with pytest.raises(error, match=message):
        pipelines.register_pass(**stated)


def test_what_is_registered_is_not_replaced_in_silence(registered):
    def mine(mod, matches):
        """First."""
        return mod

    registered("mine", phase="lowered")(mine)
    with pytest.raises(ValueError, match=r"a pass 'mine' already.*replace=True.*unregister_pass"):
        registered("mine", phase="annotated")(mine)
    assert pipelines.load()["mine"].registered.phase == "lowered"
    registered("mine", phase="annotated", replace=True)(mine)
    assert pipelines.load()["mine"].registered.phase == "annotated"
    pattern = is_op("relax.nn.relu")(wildcard())
    pipelines.register_fusion("mine", pattern, phase="legalized", replace=True)(mine)
    assert pipelines.load()["mine"].registered.phase == "legalized"
    with pytest.raises(ValueError, match="is a pass of distir_ext; choose another name"):
        registered("PadShards", phase="lowered", replace=True)


def test_a_pass_that_fails_is_named(registered):
    @registered("fails", phase="lowered")
    def fails(mod, matches):
        raise KeyError("boom")

    with pytest.raises(RuntimeError, match="the pass 'fails': KeyError: 'boom'"):
        dx.lower(annotated(), pipeline=pipelines.load())


def test_options_have_annotations_and_names_of_their_own(registered):
    def untyped(mod, matches, *, above=1):
        return mod

    def reserved(mod, matches, *, enabled: bool = True):
        return mod

    with pytest.raises(TypeError, match="option 'above' of the pass 'mine' has no annotation"):
        registered("mine", phase="lowered")(untyped)
    with pytest.raises(ValueError, match="an option 'enabled', which is stated of every pass"):
        registered("mine", phase="lowered")(reserved)


def test_what_is_no_pipeline_is_refused():
    with pytest.raises(TypeError, match="pipeline is a int"):
        dx.lower(annotated(), pipeline=3)
    with pytest.raises(KeyError, match="no pass 'PadShard'; did you mean 'PadShards'"):
        pipelines.load()["PadShard"]


@pytest.mark.large
def test_installed_packages_have_passes(tmp_path):
    (tmp_path / "their_passes.py").write_text(
        "import distir_ext as dx\n"
        "@dx.pipelines.register_pass('theirs', phase='legalized')\n"
        "def theirs(mod, matches, *, depth: int = 2):\n"
        "    '''Of another package.'''\n"
        "    return mod\n"
    )
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[distir_ext.passes]\ntheirs = their_passes\n")
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = subprocess.run(
        [sys.executable, "-m", "distir_ext", "passes"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = [line.split() for line in found.stdout.splitlines()]
    assert ["theirs", "legalized", "yes", "their_passes"] in lines
    names = [line[0] for line in lines if line]
    assert names.index("OptimizeCollectives") < names.index("theirs")
    assert names.index("theirs") < names.index("LowerGlobalViewToLocalView")
    (tmp_path / "their_passes.py").write_text("raise RuntimeError('broken')\n")
    failed = subprocess.run(
        [sys.executable, "-m", "distir_ext", "passes"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert failed.returncode == 1
    assert "the passes 'theirs' of their-package (their_passes) cannot be" in failed.stderr


def test_the_attribute_of_passes_that_have_run_is_kept(registered):
    @registered("early", phase="annotated")
    def early(mod, matches):
        return mod

    lowered = dx.lower(tensor_parallel(), pipeline=pipelines.load(), until="runtime")
    assert list(lowered.attrs["distir.passes"]) == ["early"]
    again = tvm.script.from_source(lowered.script())
    assert list(again.attrs["distir.passes"]) == ["early"]


def test_a_text_is_read_as_a_file_is():
    configuration.read_configuration(DEFAULTS.read_bytes(), "the text")
    with pytest.raises(ValueError, match="the text, line 1, p: there is no such key"):
        configuration.read_configuration(b"p: {}", "the text")
