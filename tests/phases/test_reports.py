"""Reports of passes: as data, as log lines, as a folder of files."""

import itertools
import logging
import re

import pytest
import tvm

import distir_ext as dx
from distir_ext.native.steps import steps

from .programs import annotated


def test_reports_count_what_each_pass_did():
    mod = annotated()
    with dx.pass_reports() as reports:
        dx.lower(mod, until="runtime")
    done = {report.name: report.done for report in reports}
    assert list(done) == [step.name for step in steps()]
    assert done["PropagateSharding"]["functions"] == 1
    assert done["PadShards"]["functions"] == 1
    assert done["DecomposeSharded"] == {"relax.nn.softmax": 1}
    assert done["LegalizeRedistribute"]["all_reduce"] == 3
    assert done["LowerDistIR"] == {"programs": 1}
    assert done["LowerCCL"]["all_reduce"] == 3
    assert all(report.seconds > 0 for report in reports)


def test_reports_say_what_was_skipped_and_why():
    with dx.pass_reports() as reports:
        dx.lower(annotated())
    (optimized,) = [report for report in reports if report.name == "OptimizeCollectives"]
    assert optimized.skipped["defer_reductions"] == {"its use does not commute": 3}
    assert "defer_reductions not 3 times (its use does not commute: 3)" in str(optimized)


def test_nested_collections_have_the_same_reports():
    mod = annotated()
    with dx.pass_reports() as outer:
        dx.lower(mod, until="propagated")
        with dx.pass_reports() as inner:
            dx.lower(mod, until="propagated")
    assert [each.name for each in inner] == ["SplitFused", "PropagateSharding"]
    assert len(outer) == 4
    assert outer[2:] == inner


def test_each_pass_logs_one_line(caplog):
    mod = annotated()
    with caplog.at_level(logging.INFO, logger="distir_ext.passes"):
        dx.lower(mod, until="legalized")
    lines = [text for text in caplog.messages if text.startswith("[SUMMARY] ")]
    summary = r"\[SUMMARY\] pass=LegalizeRedistribute matches=3 skipped=0: 3 all_reduce "
    assert re.fullmatch(summary + r"\(\d+\.\d ms\)", lines[5]), lines


def test_a_dump_has_the_module_before_and_after_each_pass_that_changed_it(tmp_path):
    mod = annotated()
    lowered = dx.lower(mod, dump_dir=tmp_path)
    names = sorted(path.name for path in tmp_path.glob("*.py"))
    stems = [name.removesuffix(".before.py") for name in names if name.endswith(".before.py")]
    assert stems[0] == "001_PropagateSharding"
    assert stems[-1].endswith("_LowerDistIR")
    assert (tmp_path / f"{stems[0]}.before.py").read_text() == mod.script()
    assert (tmp_path / f"{stems[-1]}.after.py").read_text() == lowered.script()
    for stem, following in itertools.pairwise(stems):
        after, before = f"{stem}.after.py", f"{following}.before.py"
        assert (tmp_path / after).read_text() == (tmp_path / before).read_text()
    page = (tmp_path / "index.html").read_text()
    assert '<span class="add">+' in page
    assert "1 relax.nn.softmax" in page
    assert all(f'href="{name}"' in page for name in names)


def test_a_dump_of_a_build_has_the_passes_of_tvm(tmp_path):
    dx.build(annotated(), dump_dir=tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert page.index("LowerCCL") < page.index("LegalizeOps") < page.index("VMShapeLower")


def test_a_dump_names_the_pass_that_failed(tmp_path):
    @tvm.transform.module_pass(opt_level=0, name="Failing")
    def failing(mod, context):
        raise RuntimeError("no")

    with (
        pytest.raises(RuntimeError, match="no"),
        tvm.transform.PassContext(instruments=[dx.DumpPasses(tmp_path)]),
    ):
        tvm.transform.Sequential([dx.transform.PropagateSharding(), failing])(annotated())
    page = (tmp_path / "index.html").read_text()
    assert "Failing: did not end" in page
    assert "PropagateSharding" in page
