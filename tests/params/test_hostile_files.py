"""Maliciously crafted weight files: one error that names the file, without long reads."""

from __future__ import annotations

import json
import os
import socket
import struct
import time

import numpy as np
import pytest
import tvm_ffi
from tvm.contrib.tvmjs import dump_tensor_cache

from distir_ext.params.checkpoint import open_params
from distir_ext.params.host_array import numpy_view
from distir_ext.params.shards import FORMAT, VERSION
from distir_ext.params.stored_array import MappedFiles, from_plain, to_plain

from .test_damage import entry, write_raw
from .test_formats import save_cache, save_param_dict, save_safetensors

# Far more than any of these takes, and far less than what they were made to take.
SECONDS = 5


@pytest.fixture(autouse=True)
def takes_no_time():
    begin = time.process_time()
    yield
    assert time.process_time() - begin < SECONDS


def refuse(path, message, found=None):
    with pytest.raises(ValueError, match=message) as caught:
        open_params(path)
    assert str(found or path) in str(caught.value)
    assert len(str(caught.value)) < 2000


HUGE = "9" * 4000
HEADERS = {
    "a name 200,000 times": (b"{" + b'"w":1,' * 200_000 + b'"w":1}', r"it has \['w'\] twice"),
    "100,000 names twice": (
        b"{" + b",".join(b'"%d":1,"%d":1' % (i, i) for i in range(100_000)) + b"}",
        r"it has \['0', '1', .* and 99992 more twice",
    ),
    "200,000 levels": (b'{"w":' + b"[" * 200_000, "recursion"),
    "a size of thousands of digits": (
        f'{{"w":{{"dtype":"F32","shape":[{HUGE}],"data_offsets":[0,4]}}}}'.encode(),
        'tensor "w" lacks a valid dtype, shape or data_offsets',
    ),
    "thousands of such sizes": (
        b'{"w":{"dtype":"F32","data_offsets":[0,4],"shape":['
        + b",".join([HUGE.encode()] * 1000)
        + b"]}}",
        'tensor "w" lacks a valid dtype, shape or data_offsets',
    ),
    "a million of sizes": (
        b'{"w":{"dtype":"F32","data_offsets":[0,4],"shape":[' + b"9999999," * 999_999 + b"1]}}",
        'tensor "w" lacks a valid dtype, shape or data_offsets',
    ),
    "sizes that wrap to 4 bytes": (
        json.dumps({"w": entry(0, 4, (2**32, 2**32 + 1))}).encode(),
        'tensor "w" lacks a valid dtype, shape or data_offsets',
    ),
    "an offset beyond 64 bits": (
        json.dumps({"w": entry(2**64, 2**64 + 8)}).encode(),
        'tensor "w" lacks a valid dtype, shape or data_offsets',
    ),
    "a shape that is a name": (
        json.dumps({"w": entry(0, 8) | {"shape": {"2": 1}}}).encode(),
        'tensor "w" lacks a valid dtype, shape or data_offsets',
    ),
    "a dtype of a megabyte": (
        json.dumps({"w": entry(0, 8, dtype="x" * 2**20)}).encode(),
        "has dtype",
    ),
    "ten million values": (b"[" + b"[]," * 5_000_000 + b"[]]", "it has some 10000002 values"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_header(case, tmp_path):
    header, message = HEADERS[case]
    path = tmp_path / "w.safetensors"
    write_raw(path, header, b"1234")
    refuse(path, message)


def test_header_of_a_sparse_file_is_not_read(tmp_path):
    """The file takes no space on the disk, and would take all of the memory."""
    path = tmp_path / "w.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 36))
    os.truncate(path, 1 << 37)
    refuse(path, "its header has 68719476736 bytes")
    index = tmp_path / "model.safetensors.index.json"
    index.touch()
    os.truncate(index, 1 << 37)
    refuse(index, "has more than 100000000 bytes")


def test_terminal_obeys_no_name(tmp_path):
    path = tmp_path / "w.safetensors"
    write_raw(path, {"\x1b[2J\x9b31mw\u202e": entry(0, 9)}, b"123456789")
    refuse(path, r'tensor "\\x1b\[2J\\x9b31mw\\u202e" has 9 bytes')


def special(kind, path):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["w.safetensors", "w.json", "w.params"])
def test_what_is_no_file_is_not_read(kind, name, tmp_path):
    special(kind, tmp_path / name)
    refuse(tmp_path / name, "is not a regular file")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_beside_an_index(kind, tmp_path):
    special(kind, tmp_path / "data")
    message = "is not a regular file|is not in the directory"
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "data"}}))
    refuse(index, message, tmp_path / "data")
    index = tmp_path / "tensor-cache.json"
    index.write_text(json.dumps({"records": [{"dataPath": "data", "nbytes": 4, "records": []}]}))
    refuse(index, message, tmp_path / "data")
    index = tmp_path / "shards.json"
    weights = {"w": {"shape": [1], "dtype": "float32", "parts": [1], "files": ["data"]}}
    index.write_text(json.dumps({"format": FORMAT, "version": VERSION, "weights": weights}))
    refuse(index, message, tmp_path / "data")


VALUES = {"w": np.arange(6, dtype="float32")}


def test_link_that_leaves_the_directory(tmp_path):
    elsewhere, here = tmp_path / "elsewhere", tmp_path / "here"
    elsewhere.mkdir()
    here.mkdir()
    save_safetensors(VALUES, elsewhere / "secret.safetensors")
    (here / "w.safetensors").symlink_to(elsewhere / "secret.safetensors")
    message = r"is a link to .*secret.safetensors, which is not in the directory"
    refuse(here, message, here / "w.safetensors")
    assert list(open_params(here / "w.safetensors")) == ["w"]  # the user has named it
    index = here / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "w.safetensors"}}))
    refuse(index, message, here / "w.safetensors")
    for name in ("..", "", "../x", 7, ["w"]):
        index.write_text(json.dumps({"weight_map": {"w": name}}))
        refuse(index, "is damaged", index)


INDICES = {
    "model.safetensors.index.json": lambda file: {"weight_map": {"w": file}},
    "tensor-cache.json": lambda file: {"records": [{"dataPath": file, "nbytes": 4, "records": []}]},
    "shards.json": lambda file: {
        "format": FORMAT,
        "version": VERSION,
        "weights": {"w": {"shape": [1], "dtype": "float32", "parts": [1], "files": [file]}},
    },
}


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("a\0b", r"'a\\x00b' is not the name of a file"),
        ("\ud800", r"'\\ud800' is not the name of a file"),
        ("a\nb\x1b[2J", r"'a\\nb\\x1b\[2J' is not the name of a file"),
        ("/etc/passwd", "'/etc/passwd' is not the name of a file"),
        ("x/" * 100_000, "is not the name of a file"),
    ],
)
def test_names_that_no_file_has(index, file, message, tmp_path):
    (tmp_path / index).write_text(json.dumps(INDICES[index](file)))
    refuse(tmp_path, message, tmp_path / index)


@pytest.mark.parametrize("index", INDICES)
def test_links_that_lead_in_a_circle(index, tmp_path):
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    (tmp_path / index).write_text(json.dumps(INDICES[index]("one")))
    refuse(tmp_path, "is a link that leads nowhere|is not in the directory", tmp_path / "one")


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "\x9b2J", "\u202e", "\ud800", "a\tb"])
def test_names_of_tensors_that_cannot_be_printed(name, tmp_path):
    """Whatever is wrong later may say them: that no weight has this name, another dtype."""
    path = tmp_path / "w.safetensors"
    write_raw(path, {name: entry(0, 8)}, b"12345678")
    refuse(path, r'tensor "[ -~]*" has a control character')


@pytest.mark.parametrize("name", [5, None, True, ["w"], {"w": 1}])
def test_names_of_tensors_that_are_no_text(name, tmp_path):
    save_cache({"w": np.zeros(2, "int64")}, tmp_path)
    index = json.loads((tmp_path / "tensor-cache.json").read_text())
    index["records"][0]["records"][0]["name"] = name
    (tmp_path / "tensor-cache.json").write_text(json.dumps(index))
    refuse(tmp_path, "has a name that is not text", tmp_path)


@pytest.mark.parametrize("change", [{"parts": [True]}, {"shape": [-1]}, {"shape": [2**60]}])
def test_shards_of_sizes_that_there_are_not(change, tmp_path):
    save_safetensors({"w": np.zeros(1, "float32")}, tmp_path / "data")
    index = INDICES["shards.json"]("data")
    index["weights"]["w"] |= change
    (tmp_path / "shards.json").write_text(json.dumps(index))
    refuse(tmp_path, 'weight "w" has no valid shape or parts', tmp_path / "shards.json")


def test_many_files_to_choose_from(tmp_path):
    for number in range(500):
        (tmp_path / f"{number}.safetensors").touch()
    refuse(tmp_path, "has several of .* and 492 more; pass one of them")


def test_links_that_stay(tmp_path):
    """Also those of a cache of Hugging Face, and the one that the user names."""
    save_safetensors(VALUES, tmp_path / "real.safetensors")
    (tmp_path / "link.safetensors").symlink_to("real.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "link.safetensors"}}))
    assert list(open_params(tmp_path)) == ["w"]
    model = tmp_path / "models--a--b"
    (model / "blobs").mkdir(parents=True)
    snapshot = model / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (tmp_path / "real.safetensors").rename(model / "blobs" / "abcd")
    (snapshot / "model.safetensors").symlink_to("../../blobs/abcd")
    assert list(open_params(snapshot)) == ["w"]
    assert list(open_params(snapshot / "model.safetensors")) == ["w"]


@pytest.mark.parametrize(
    ("count", "length", "message"),
    [
        (2**62, 0, f"it has {2**62} tensors"),
        (1, 2**36, f"name 0 has {2**36} bytes"),
        (3, 60_000_000, "name 1 has 60000000 bytes"),
    ],
)
def test_parameter_file_that_is_sparse(count, length, message, tmp_path):
    """Its names take no space on the disk, and would take all of the memory."""
    path = tmp_path / "w.params"
    with path.open("wb") as file:
        file.write(struct.pack("<QQQ", 0xF7E58D4F05049CB7, 0, count))
        for _ in range(min(count, 3)):
            file.write(struct.pack("<Q", length))
            file.seek(length, os.SEEK_CUR)
        file.truncate(1 << 38)
    refuse(path, message)


def test_parameter_file_of_a_million_dimensions(tmp_path):
    path = tmp_path / "w.params"
    save_param_dict(VALUES, path)
    text = bytearray(path.read_bytes())
    at = text.index(struct.pack("<iBBH", 1, 2, 32, 1))  # dimensions, then float32
    text[at : at + 4] = struct.pack("<i", 1_000_000)
    path.write_bytes(text + struct.pack("<q", 2**62) * 1_000_001)
    refuse(path, 'tensor "w" has no valid header')


@pytest.mark.parametrize("dtype", ["O", "object", "void", "int4", "S8", [["a", "O"]], "float32x4"])
def test_dtype_that_is_not_one_of_numbers(dtype, tmp_path):
    """NumPy would take pointers from the file."""
    save_cache({"w": np.zeros(2, "int64")}, tmp_path)
    index = json.loads((tmp_path / "tensor-cache.json").read_text())
    index["records"][0]["records"][0]["dtype"] = dtype
    (tmp_path / "tensor-cache.json").write_text(json.dumps(index))
    refuse(tmp_path, "which cannot be loaded|is damaged", tmp_path)


@pytest.mark.parametrize("save", [save_safetensors, save_cache, save_param_dict])
def test_file_that_is_cut_off_after_it_was_opened(save, tmp_path):
    path = tmp_path if save is save_cache else tmp_path / "w.safetensors"
    if save is save_param_dict:
        path = tmp_path / "w.params"
    save({"w": np.arange(100_000, dtype="float32")}, path)
    array = open_params(path)["w"]
    os.truncate(array.path, 1000)
    with pytest.raises(ValueError, match=f"{array.path} was cut off since it was opened: tensor"):
        MappedFiles().native(array.shard([0], [4]))
    os.truncate(array.path, 0)
    with pytest.raises(ValueError, match=f"{array.path} is empty"):
        MappedFiles().native(array.shard([0], [4]))


@pytest.mark.parametrize("dtype", ["float32", "widened"])
def test_file_that_is_cut_off_while_it_is_read(dtype, tmp_path):
    """The memory behind its end is gone, which ended the process."""
    values = {"w": np.ones(100_000, "float32")}
    if dtype == "widened":
        dump_tensor_cache(values, str(tmp_path), encode_format="f32-to-bf16", show_progress=False)
        array = open_params(tmp_path)["w"]
        assert array.stored_dtype == "bfloat16"
    else:
        save_safetensors(values, tmp_path / "w.safetensors")
        array = open_params(tmp_path / "w.safetensors")["w"]
    files = MappedFiles()
    np.testing.assert_array_equal(cut(files.native(array.shard([0], [100_000]))), values["w"])
    begun = files.native(array.shard([90_000], [10_000]))
    os.truncate(array.path, 1000)
    with pytest.raises(ValueError, match=f"{array.path}.* was cut off while it was read"):
        cut(files.native(array.shard([90_000], [10_000])))
    if dtype == "float32":
        with pytest.raises(ValueError, match=r'tensor "w" of .* was cut off while it was read'):
            cut(begun)


def cut(shard):
    return numpy_view(tvm_ffi.get_global_func("distir.runtime.cut_shard")(shard))


def test_arrays_on_disk_that_others_describe(tmp_path):
    save_safetensors(VALUES, tmp_path / "w.safetensors")
    array = open_params(tmp_path / "w.safetensors")["w"]
    plain = to_plain(array)
    assert from_plain(plain) == array
    box = to_plain(array.shard([1], [2]))
    assert from_plain(box) == array.shard([1], [2])
    for change in (
        {"dtype": "O"},
        {"stored_dtype": "O"},
        {"shape": [-1]},
        {"shape": [2**40, 2**40]},
        {"offset": -1},
        {"offset": 2**64},
        {"path": 1},
        {"name": None},
        {"pieces": [plain], "parts": [2]},
        {"pieces": [plain], "parts": [0]},
        {"pieces": [box], "parts": [1]},
    ):
        with pytest.raises(ValueError, match=r"."):
            from_plain({**plain, **change})
    for change in ({"begin": [0, 0]}, {"extent": []}, {"array": box}, {"begin": [-1]}):
        with pytest.raises(ValueError, match=r"."):
            from_plain({**box, **change})
    for value in (None, [], "text", {}):
        with pytest.raises(ValueError, match="lacks a valid"):
            from_plain(value)
