"""Hints as YAML and as Python: round trips, and errors that name the place."""

from __future__ import annotations

import pytest

from distir_ext.hints import DistConfig, Hints, LayerHint, WeightHint, load, to_yaml
from distir_ext.hints.configuration import read_hints

TEXT = """\
dist:
  world_size: 4
  moe_ep_size: 2
  shard_layers: [mha, moe]
layers:
  model.layers.*.self_attn:
    layer_type: mha
    weights:
      qkv: {tp_mode: colwise, output_sizes: [64, 32, 32], tp_min_local_shape: 16}
      o_proj: {tp_mode: rowwise}
"""


def test_yaml_says_what_python_says(tmp_path):
    path = tmp_path / "hints.yaml"
    path.write_text(TEXT)
    found = load(path)
    weights = {
        "qkv": WeightHint("colwise", (64, 32, 32), 16),
        "o_proj": WeightHint("rowwise"),
    }
    assert found == Hints(
        {"model.layers.*.self_attn": LayerHint("mha", weights)},
        DistConfig(4, moe_ep_size=2, shard_layers=("mha", "moe")),
    )
    assert read_hints(to_yaml(found).encode(), "the text") == found


def test_the_last_of_several_wins_by_layer():
    first = {"layers": {"a": {"layer_type": "mha"}, "b": {"layer_type": "mlp"}}}
    found = load(first, {"dist": {"world_size": 2}, "layers": {"a": {"layer_type": "mla"}}})
    assert {name: layer.layer_type for name, layer in found.layers.items()} == {
        "a": "mla",
        "b": "mlp",
    }
    assert found.dist == DistConfig(2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mha\n    w", "mah\n    w", "line 7, .*layer_type: there is no layer_type 'mah'.*'mha'"),
        ("colwise", "colwis", "line 9, .*tp_mode: there is no tp_mode 'colwis'.*'colwise'"),
        ("output_sizes", "output_size", "line 9, .*no such key.*'output_sizes'"),
        ("weights:", "weight:", "line 8, .*no such key, only .*did you mean 'weights'"),
        ("dist:", "dists:", "line 1, dists: there is no such key, only dist, layers"),
        ("[64, 32, 32]", "[64, x]", "line 9, .*output_sizes: expected int"),
        ("[64, 32, 32]", "[64, 0]", "line 9, .*output_sizes: output_sizes .* not all positive"),
        ("world_size: 4", "world_size: 3", "line 3, dist.moe_ep_size: moe_ep_size 2 does not div"),
        ("  world_size: 4\n", "", "line 1, dist: world_size has to be stated"),
        ("[mha, moe]", "[mha, mo]", "shard_layers: there is no shard_layers 'mo'.*'moe'"),
        ("{tp_mode: rowwise}", "5", "line 10, .*a mapping is expected, not 5"),
    ],
)
def test_what_is_wrong_has_its_line_and_the_nearest_name(tmp_path, old, new, message):
    assert old in TEXT
    path = tmp_path / "hints.yaml"
    path.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_python_refuses_the_same():
    with pytest.raises(ValueError, match="no tp_mode 'cols'"):
        WeightHint("cols")
    with pytest.raises(ValueError, match="output_sizes are of weights that are sharded colwise"):
        WeightHint("rowwise", (8, 8))
    with pytest.raises(ValueError, match="3 numbers for 2 output_sizes"):
        WeightHint("colwise", (8, 8), (1, 2, 3))
    with pytest.raises(ValueError, match="moe_tp_size 4 times moe_ep_size 2 is not tp_size 4"):
        DistConfig(4, moe_ep_size=2, moe_tp_size=4)
    with pytest.raises(ValueError, match="tp_size 3 does not divide world_size 4"):
        DistConfig(4, tp_size=3)
    with pytest.raises(KeyError, match="no weight of a 'q'"):
        load({"layers": {"a": {"weights": {"q_proj": {}}}}}).with_weight("a", "q", tp_mode="none")
