"""Damaged files: one error that names the file and the tensor, before any worker does anything."""

from __future__ import annotations

import contextlib
import json
import re
import struct

import numpy as np
import pytest

from .conftest import assert_same_bytes, executable, held
from .test_formats import save_cache, save_checkpoint, save_param_dict, save_safetensors


def write_raw(path, header, data=b""):
    """A safetensors file of a header, which is any JSON value or bytes, and data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def entry(begin, end, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def cut(path, count):
    path.write_bytes(path.read_bytes()[:count])


FILES = {
    "empty": (lambda path: path.write_bytes(b""), "it has 0 bytes, fewer than a header's length"),
    "header beyond the end": (
        lambda path: path.write_bytes(struct.pack("<Q", 1000) + b"{}"),
        "its header has 1000 bytes, the file 10",
    ),
    "huge header": (
        lambda path: path.write_bytes(b"\xff" * 100),
        "its header has 18446744073709551615 bytes, the file 100",
    ),
    "no JSON": (lambda path: write_raw(path, b'{"w": '), "the header of .* is damaged: Expecting"),
    "no text": (lambda path: write_raw(path, b"\xff\xfe"), "the header of .* is damaged: .*decode"),
    "nested too deep": (lambda path: write_raw(path, b"[" * 10**6), "is damaged: .*recursion"),
    "no object": (lambda path: write_raw(path, [1]), "it is not a JSON object"),
    "a name twice": (
        lambda path: write_raw(path, b'{"w": {}, "v": {}, "w": {}}'),
        r"the header of .* it has \['w'\] twice",
    ),
    "no dtype": (
        lambda path: write_raw(path, {"w": {"shape": [1]}}),
        'tensor "w" lacks a valid dtype, shape or data_offsets',
    ),
    "negative size": (
        lambda path: write_raw(path, {"w": entry(0, 8, (-2, -1))}, b"12345678"),
        'tensor "w" lacks a valid dtype, shape or data_offsets',
    ),
    "size that is no number": (
        lambda path: write_raw(path, {"w": entry(0, 8, ("2",))}, b"12345678"),
        'tensor "w" lacks a valid dtype, shape or data_offsets',
    ),
    "unknown dtype": (
        lambda path: write_raw(path, {"w": entry(0, 1, dtype="F4")}, b"1"),
        'tensor "w" of .* has dtype F4, which cannot be loaded; known are BOOL',
    ),
    "another size": (
        lambda path: write_raw(path, {"w": entry(0, 9)}, b"123456789"),
        r'tensor "w" has 9 bytes; float32 \[2\] takes 8',
    ),
    "truncated": (
        lambda path: write_raw(path, {"w": entry(0, 8)}, b"1234"),
        r'tensor "w" ends at byte 77 of 73',
    ),
    "overlap": (
        lambda path: write_raw(path, {"w": entry(0, 8), "v": entry(4, 12)}, b"1" * 12),
        'tensor "v" does not begin where tensor "w" ends',
    ),
    "hole": (
        lambda path: write_raw(path, {"w": entry(0, 8), "v": entry(9, 17)}, b"1" * 17),
        'tensor "v" does not begin where tensor "w" ends',
    ),
    "something at the end": (
        lambda path: write_raw(path, {"w": entry(0, 8)}, b"1" * 9),
        '1 bytes follow tensor "w"',
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_safetensors_file(case, two_weights, session, tmp_path):
    write, message = FILES[case]
    path = tmp_path / "w.safetensors"
    write(path)
    with pytest.raises(ValueError, match=message) as caught:
        session.load(two_weights[0], params=path)
    assert str(path) in str(caught.value)
    check_usable(session, two_weights)


def check_usable(session, two_weights):
    exe, values = two_weights
    assert_same_bytes(held(session.load(exe, params=values), "w")[1], values["w"][2:4])


def edit_index(path, change):
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


FIRST, SECOND = (f"model-0000{part}-of-00002.safetensors" for part in (1, 2))

CHECKPOINTS = {
    "tensor in two files": (
        lambda root, values: save_safetensors(values, root / SECOND),
        'tensor "w" is in two files, .*00001-of.* and .*00002-of',
    ),
    "file without the tensor": (
        lambda root, values: edit_index(root / INDEX, lambda i: i["weight_map"].update(w=SECOND)),
        f'tensor "w" is not in {SECOND}',
    ),
    "tensor without a file": (
        lambda root, values: edit_index(root / INDEX, lambda i: i["weight_map"].update(u=FIRST)),
        f'tensor "u" is not in {FIRST}',
    ),
    "tensor that the index lacks": (
        lambda root, values: save_safetensors({"w": values["w"], "u": values["v"]}, root / FIRST),
        r"it lacks \['u'\], which its files have",
    ),
    "damaged file": (
        lambda root, values: cut(root / FIRST, 100),
        f'{FIRST} is damaged: tensor "w" ends at byte',
    ),
    "file elsewhere": (
        lambda root, values: edit_index(root / INDEX, lambda i: i["weight_map"].update(w="../x")),
        "'../x' is not the name of a file beside it",
    ),
    "no map": (
        lambda root, values: (root / INDEX).write_text('{"weight_map": [1]}'),
        "it has no weight_map from names to files",
    ),
    "other JSON": (
        lambda root, values: (root / INDEX).write_text("{}"),
        "has none of the formats that are known",
    ),
}
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_safetensors_checkpoint(case, two_weights, session, tmp_path):
    damage, message = CHECKPOINTS[case]
    save_checkpoint(two_weights[1], tmp_path)
    damage(tmp_path, two_weights[1])
    with pytest.raises(ValueError, match=message) as caught:
        session.load(two_weights[0], params=tmp_path)
    assert str(tmp_path) in str(caught.value)
    check_usable(session, two_weights)


def test_missing_files(two_weights, session, tmp_path):
    exe, values = two_weights
    save_checkpoint(values, tmp_path)
    (tmp_path / SECOND).unlink()
    with pytest.raises(FileNotFoundError, match=SECOND):
        session.load(exe, params=tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        session.load(exe, params=tmp_path / "nowhere")
    check_usable(session, two_weights)


def test_directories_without_one_answer(two_weights, session, tmp_path):
    exe, values = two_weights
    with pytest.raises(ValueError, match=f"{tmp_path} has no weights: no shards.json"):
        session.load(exe, params=tmp_path)
    for name in ("a.safetensors", "b.safetensors"):
        save_safetensors(values, tmp_path / name)
    with pytest.raises(ValueError, match=r"several of \*.safetensors \['a.safeten.*pass one"):
        session.load(exe, params=tmp_path)


def test_files_of_a_series_without_an_index(two_weights, session, tmp_path):
    exe, values = two_weights
    for number, (name, value) in enumerate(values.items(), start=1):
        save_safetensors({name: value}, tmp_path / f"model-0000{number}-of-00002.safetensors")
    for name in values:
        wanted = held(session.load(exe, params=values), name)
        for device, shard in held(session.load(exe, params=tmp_path), name).items():
            assert_same_bytes(shard, wanted[device])
    (tmp_path / "model-00001-of-00002.safetensors").rename(
        tmp_path / "model-00003-of-00002.safetensors"
    )
    with pytest.raises(ValueError, match=r"has 2 of the 2 files .* no index; number 1 is missing"):
        session.load(exe, params=tmp_path)
    (tmp_path / "model-00003-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has 1 of the 2 files .* no index; number 1 is missing"):
        session.load(exe, params=tmp_path)
    save_safetensors(values, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="pass one of them"):
        session.load(exe, params=tmp_path)


def change_record(root, **members):
    def change(index):
        index["records"][0]["records"][0].update(members)

    edit_index(root / "tensor-cache.json", change)


CACHES = {
    "truncated": (
        lambda root: cut(root / "params_shard_0.bin", 100),
        "params_shard_0.bin is damaged: it has 100 bytes, tensor-cache.json says 216",
    ),
    "tensor beyond the end": (
        lambda root: change_record(root, byteOffset=100),
        'tensor "w" of .*bin ends at byte 292 of 216',
    ),
    "another size": (
        lambda root: change_record(root, shape=[8, 7]),
        r'tensor "w" of .*bin has 192 bytes for float32 \[8, 7\]',
    ),
    "unknown dtype": (
        lambda root: change_record(root, dtype="int3"),
        'tensor "w" of .*bin has dtype int3, which cannot be loaded',
    ),
    "sizes that are no numbers": (
        lambda root: change_record(root, shape="ab"),
        'tensor "w" of .*bin lacks a valid shape, byteOffset or nbytes',
    ),
    "negative offset": (
        lambda root: change_record(root, byteOffset=-4),
        'tensor "w" of .*bin lacks a valid shape, byteOffset or nbytes',
    ),
    "unknown format": (
        lambda root: change_record(root, format="zip"),
        "tensor \"w\" of .*bin has the format 'zip'",
    ),
    "a name twice": (lambda root: change_record(root, name="v"), 'it has tensor "v" twice'),
    "no records": (
        lambda root: (root / "tensor-cache.json").write_text('{"records": [{}]}'),
        "a record lacks a valid 'dataPath'",
    ),
}


@pytest.mark.parametrize("case", CACHES)
def test_tensor_cache(case, two_weights, session, tmp_path):
    damage, message = CACHES[case]
    save_cache(two_weights[1], tmp_path)
    damage(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        session.load(two_weights[0], params=tmp_path)
    assert str(tmp_path) in str(caught.value)
    check_usable(session, two_weights)


def test_parameter_file_cut_off_anywhere(two_weights, session, tmp_path):
    exe, values = two_weights
    path = tmp_path / "model.params"
    save_param_dict(values, path)
    whole = path.read_bytes()
    for count in range(8, len(whole)):
        path.write_bytes(whole[:count])
        with pytest.raises(ValueError, match=re.escape(str(path))):
            session.load(exe, params=path)
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"model.params has none of the formats that are known"):
        session.load(exe, params=path)
    check_usable(session, two_weights)


# Two numbers are reserved; the device that the tensor came from does not matter.
UNREAD = {*range(8, 16), *range(58, 74)}


@pytest.mark.parametrize("position", range(8, 106))
def test_parameter_file_of_other_bytes(position, two_weights, session, tmp_path):
    """All that precedes the elements of the first tensor is checked."""
    path = tmp_path / "model.params"
    save_param_dict(two_weights[1], path)
    text = bytearray(path.read_bytes())
    text[position] ^= 0xFF
    path.write_bytes(text)
    with contextlib.ExitStack() as stack:
        if position not in UNREAD:
            stack.enter_context(pytest.raises(ValueError, match=re.escape(str(path))))
        session.load(two_weights[0], params=path)


def test_mismatch_names_the_weight_and_the_file(two_weights, session, tmp_path):
    exe, values = two_weights
    path = tmp_path / "w.safetensors"
    save_safetensors({**values, "w": np.zeros((8, 6), "float16")}, path)
    expected = rf'weight "w" of "main" \(tensor "w" of {path}\) has dtype float16, expected float32'
    with pytest.raises(TypeError, match=expected):
        session.load(exe, params=path)
    save_safetensors({**values, "w": values["w"].T.copy()}, path)
    expected = (
        rf'dimension 0 of weight "w" of "main" \(tensor "w" of {path}\) has size 6, expected 8'
    )
    with pytest.raises(ValueError, match=expected):
        session.load(exe, params=path)
    save_safetensors({**values, "w": values["w"][0]}, path)
    with pytest.raises(ValueError, match=rf"{path}\) has 1 dimension \[6\], expected 2"):
        session.load(exe, params=path)
    check_usable(session, two_weights)


def test_nothing_runs_before_all_is_checked(mesh, session, tmp_path, monkeypatch):
    weights = {"a": ((4,), "float32"), "b": ((4,), "float32")}
    exe = executable(mesh, weights, {"a": ("tp",)})
    save_safetensors({"a": np.zeros(4, "float32"), "b": np.zeros(5, "float32")}, tmp_path / "w")
    (tmp_path / "w").rename(tmp_path / "w.safetensors")
    steps = []
    run = session._workers.run
    monkeypatch.setattr(
        session._workers, "run", lambda name, *rest: steps.append(name) or run(name, *rest)
    )
    with pytest.raises(ValueError, match="has size 5, expected 4"):
        session.load(exe, params=tmp_path / "w.safetensors")
    assert steps == []
