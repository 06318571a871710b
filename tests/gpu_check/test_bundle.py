"""``distir gpu-check --bundle`` packs all that a machine without a network needs to install."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from distir_ext._version import __version__
from distir_ext.gpu_check.bundle import make_bundle

ROOT = Path(__file__).resolve().parents[2]


def declared(name):
    """Reads the package's dependencies, or those of one extra, from pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (listed,) = re.findall(rf"^{name} = \[(.*?)\]$", text, re.DOTALL | re.MULTILINE)
    listed = re.sub("#.*", "", listed)
    return re.findall(r'"(.+?)"', listed)


def write_wheel(folder, name, version, needs=()):
    """A wheel of one empty module, with these requirements."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    extras = sorted(set(re.findall('extra == "(.*?)"', "\n".join(needs))))
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Provides-Extra: {extra}" for extra in extras]
    lines += [f"Requires-Dist: {need}" for need in needs]
    files = {
        f"{module}.py": "",
        f"{info}/METADATA": "\n".join(lines) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record += f"{path},sha256={digest.decode()},{len(text)}\n"
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


def version_of(requirement):
    """The lowest that it allows."""
    bounds = [each.version for each in requirement.specifier if each.operator in (">=", "==")]
    return bounds[0] if bounds else "1.0"


def write_package(folder):
    """A wheel of the package that needs what the package's own does."""
    own = declared("dependencies")
    for extra in ("nvrtc", "cuda"):
        own += [f'{each}; extra == "{extra}"' for each in declared(extra)]
    write_wheel(folder, "distir-ext", __version__, own)
    needed = [*declared("dependencies"), *declared("nvrtc"), *declared("cuda")]
    return [each for each in map(Requirement, needed) if each.name != "distir-ext"]


def install(folder, target, *options):
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(folder)]
    return subprocess.run(
        [*command, "--target", str(target), *options, "distir-ext[cuda]"],
        env={name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        capture_output=True,
        text=True,
        check=False,
    )


def installed(target):
    return {path.name.split("-")[0] for path in target.glob("*.dist-info")}


def test_what_is_packed_can_be_installed_without_a_network(monkeypatch, tmp_path, capfd):
    """From small wheels with the names, versions and requirements of the real ones."""
    registry, folder = tmp_path / "registry", tmp_path / "wheels"
    registry.mkdir()
    needed = write_package(registry)
    for requirement in needed:
        write_wheel(registry, requirement.name, version_of(requirement))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(registry))
    assert make_bundle(str(folder)) == 0
    said = capfd.readouterr().out
    assert "pip install --no-index --find-links wheels 'distir-ext[cuda]'" in said
    names = {each.name.replace("-", "_") for each in needed} | {"distir_ext"}
    assert {path.name.split("-")[0] for path in folder.iterdir()} == names
    for path in registry.iterdir():
        path.unlink()
    done = install(folder, tmp_path / "fresh")
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path / "fresh") == names
    # The control: without one of them it cannot.
    next(folder.glob("nvidia_nccl_cu13-*")).unlink()
    done = install(folder, tmp_path / "other")
    assert done.returncode != 0
    assert "nvidia-nccl-cu13" in done.stderr


def test_what_cannot_be_downloaded_is_an_error(monkeypatch, tmp_path, capfd):
    (tmp_path / "registry").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "registry"))
    assert make_bundle(str(tmp_path / "wheels")) != 0
    said = capfd.readouterr()
    assert "No matching distribution found for distir-ext" in said.err
    assert "On the machine with GPUs" not in said.out


@pytest.mark.large
def test_real_wheels_can_be_installed_without_a_network(tmp_path, capfd):
    """All but the package's own, which is not published from here: 0.5 GB."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    needed = write_package(folder)
    status = make_bundle(str(folder))
    said = capfd.readouterr()
    missing = re.search("No matching distribution found for (.*)", said.err)
    if missing:
        pytest.skip(f"the registry that pip uses has no {missing[1]}")
    assert status == 0, said.err
    done = install(folder, tmp_path / "fresh")
    assert done.returncode == 0, done.stderr
    fresh = installed(tmp_path / "fresh")
    assert {each.name.replace("-", "_") for each in needed} <= fresh
    assert list((tmp_path / "fresh" / "nvidia").glob("*/lib/libnccl.so.2"))
