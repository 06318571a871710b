"""Distributed modules as graphs: nodes, shardings, folded layers, DOT and pictures."""

import re
import shutil
import stat
import sys
from collections import Counter

import pytest
from tests.analysis.models import MESH, MODELS
from tests.analysis.programs import function, megatron
from tests.analysis.test_memory import Branches, Calls
from tvm.relax import op

import distir_ext as dx
from distir_ext.analysis.graphs.dot import STYLES
from distir_ext.analysis.repeated_layers import find_repeats
from distir_ext.demo.llama import PLAN, LlamaConfig, export


def gated():
    case = MODELS["mlp"]()
    return case.annotated(case.plans["mixed"])


def nodes(graph, kind):
    return [node.variable for f in graph.functions for node in f.nodes if node.kind == kind]


def declared(text):
    """The nodes and the edges of a text in DOT, as Graphviz reads them."""
    strings = r'"((?:[^"\\]|\\.)*)"'
    edges = re.findall(rf"^ *{strings} -> {strings} \[", text, re.MULTILINE)
    names = re.findall(rf"^ *{strings} \[", text, re.MULTILINE)
    return names, edges


@pytest.mark.parametrize("until", ["annotated", "propagated", "legalized", "lowered"])
def test_every_phase_is_drawn(until):
    mod = gated() if until == "annotated" else dx.lower(gated(), until=until)
    text = dx.analysis.graph(mod).to_dot()
    names, edges = declared(text)
    assert len(set(names)) == len(names)
    assert {end for edge in edges for end in edge} <= set(names)
    assert STYLES["reshard"].fill in text
    assert "main/x" in names


def test_nodes_say_what_moves_and_edges_how_it_is_sharded():
    graph = dx.analysis.graph(gated())
    assert nodes(graph, "reshard") == ["lv5"]
    (main,) = graph.functions
    shardings = {(edge.source, edge.target): edge.sharding for edge in main.edges}
    assert "partial sum over 'tp'" in shardings["main/lv5_1", "main/lv5"]
    assert shardings["main/lv5", "main/gv"] == "(None, 'dp')"
    legal = dx.analysis.graph(dx.lower(gated(), until="legalized"))
    found = dx.analysis.reshards(gated())
    assert len(nodes(legal, "reduction")) == sum(e.kind == "reduction" for e in found.entries)


def test_what_a_plan_states_has_a_colour_of_its_own():
    mod = function({"x": (16, 32), "w": (32, 32)}, lambda emit, x, w: op.matmul(emit(op.abs(x)), w))
    graph = dx.analysis.graph(dx.annotate(mod, MESH, {"x": ("dp", None), "lv": (None, "dp")}))
    assert nodes(graph, "stated") == ["lv"]
    fills = Counter(style.fill for kind, style in STYLES.items() if kind not in ("result",))
    assert max(fills.values()) == 1


def test_equal_layers_are_drawn_once():
    def of(layers):
        mod, _ = export(LlamaConfig(layers=layers))
        return dx.analysis.graph(dx.annotate(mod, MESH, PLAN, func="forward"))

    few, many = of(3), of(9)
    assert [len(f.nodes) for f in few.functions] == [len(f.nodes) for f in many.functions]
    assert few.to_dot().replace('"x 3"', '"x 9"').count("\n") == many.to_dot().count("\n")
    (main,) = many.functions
    ((count, keys),) = main.layers
    assert count == 9
    labels = {node.label for node in main.nodes if node.key in keys}
    assert "layers.*.mlp.down_proj.weight" in labels
    assert "embed.weight" not in labels
    assert any(edge.to_next for edge in main.edges)


def test_nothing_is_folded_that_differs():
    case = MODELS["llama"]()
    first_is_other = {r"layers\.0\.mlp\.down_proj\.weight": None, **PLAN}
    (main,) = dx.analysis.graph(case.annotated(first_is_other)).functions
    assert main.layers == ()


def test_calls_lead_to_the_functions_that_they_call():
    graph = dx.analysis.graph(dx.annotate(Calls, dx.Mesh(tp=2), {"x": (None, "tp")}))
    assert len(graph.functions) == 2
    assert len(nodes(graph, "call")) == 2
    names, edges = declared(graph.to_dot())
    callee = next(f for f in graph.functions if f.name != "main")
    assert sum(target == callee.nodes[0].key for _, target in edges) == 2
    only = dx.analysis.graph(dx.annotate(Calls, dx.Mesh(tp=2), {"x": (None, "tp")}), "main")
    assert [each.name for each in only.functions] == ["main"]
    assert len(declared(only.to_dot())[0]) < len(names)


def test_both_sides_of_a_branch_are_there():
    graph = dx.analysis.graph(dx.annotate(Branches, dx.Mesh(tp=2), {"x": (None, "tp")}))
    (main,) = graph.functions
    labels = Counter(node.label for node in main.nodes)
    assert labels["nn.softmax"] == 4
    assert labels["nn.relu"] == 1
    assert labels["if"] == 1


def test_repeats():
    assert find_repeats("xabcabcabcy") == [type(find_repeats("abcdabcdabcd")[0])(1, 3, 3)]
    assert find_repeats("abcdefghijkl") == []
    assert find_repeats("aabb") == []
    two = find_repeats("abcdabcdabcd-efghefghefgh")
    assert [(each.start, each.period, each.count) for each in two] == [(0, 4, 3), (13, 4, 3)]
    for sequence in ("abababababab", "abcabdabcabdabcabd", "aaaaaaaaaabbbbbbbbbb"):
        for each in find_repeats(sequence):
            part = sequence[each.start : each.end]
            assert part == part[: each.period] * each.count


def fake_dot(folder, lines):
    script = folder / "dot"
    script.write_text(f"#!{sys.executable}\nimport sys\ntext = sys.stdin.read()\n{lines}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


def test_a_picture_is_what_dot_draws(tmp_path, monkeypatch):
    fake_dot(tmp_path, "print('<?xml?><svg>' + str(len(text)) + '</svg>')")
    monkeypatch.setenv("PATH", str(tmp_path))
    graph = dx.analysis.graph(megatron())
    picture = graph.to_svg(tmp_path / "graph.svg")
    assert picture.rstrip() == f"<svg>{len(graph.to_dot())}</svg>"
    assert (tmp_path / "graph.svg").read_text() == picture == graph._repr_svg_()


def test_without_graphviz_the_text_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    graph = dx.analysis.graph(megatron())
    assert graph._repr_svg_() is None
    assert "to_dot()" in repr(graph)
    with pytest.raises(RuntimeError, match="apt install graphviz"):
        graph.to_svg()
    fake_dot(tmp_path, "sys.exit('syntax error')")
    with pytest.raises(RuntimeError, match="dot failed: syntax error"):
        graph.to_svg()


@pytest.mark.parametrize("model", MODELS)
def test_graphviz_draws_all_of_it(model):
    case = MODELS[model]()
    graph = dx.analysis.graph(case.annotated(case.plans["mixed"]))
    names, edges = declared(graph.to_dot())
    assert {end for edge in edges for end in edge} <= set(names)
    if shutil.which("dot") is None:  # the text is all that there is
        return
    picture = graph.to_svg()
    assert picture.count('class="edge"') == len(edges)
    assert picture.count('class="node"') == len(names) + 1  # the legend


def test_bad_input():
    mod = megatron()
    with pytest.raises(ValueError, match=r"no Relax function 'mian'; did you mean 'main'\?"):
        dx.analysis.graph(mod, "mian")
    with pytest.raises(ValueError, match="no sharding annotations"):
        dx.analysis.graph(function({"x": (4,)}, lambda emit, x: op.nn.relu(x)))
    with pytest.raises(TypeError):
        dx.analysis.graph("main")
