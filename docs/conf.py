"""How Sphinx builds the documentation: ``make docs``. Every warning is an error there."""

import hashlib
import re
import sys
from pathlib import Path

from sphinx.addnodes import pending_xref

import distir_ext
from distir_ext import __version__
from distir_ext.native.library import library_path

project = "distir_ext"
copyright = "the distir_ext contributors"
release = version = __version__

sys.path.append(str(Path(__file__).parent))  # command_pages
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "command_pages",
]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
html_theme = "furo"
html_title = f"distir_ext {release}"
html_static_path = ["static"]
html_css_files = ["outputs.css"]

myst_heading_anchors = 3  # links such as annotate.md#by-a-plan-on-names
myst_enable_extensions = ["colon_fence"]


def package_digest() -> str:
    """Changes with the package: what notebooks show is made by it."""
    sources = sorted(Path(distir_ext.__file__).parent.rglob("*.py"))
    digest = hashlib.sha256()
    for path in [*sources, library_path()]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


# Notebooks are kept without outputs, and executed here. One that fails is an error.
nb_execution_mode = "cache"
nb_execution_cache_path = str(
    Path(__file__).parents[1] / "build" / "docs" / "notebooks" / package_digest()
)
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
# Reference pages need not have these. TVM's frontend joins types of torch by "|", which is an error
# for what stands in for them, so it has a stand-in too.
autodoc_mock_imports = ["jax", "jaxlib", "torch", "transformers", "tvm.relax.frontend.torch"]
autodoc_type_aliases = {"Plan": "distir_ext.annotate.Plan"}
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Raises when applied", "params_style")]

# What other packages document. Their sites are not read: the build works without a network.
nitpick_ignore_regex = [
    (r"py:.*", r"(tvm|tvm_ffi|relax|np|numpy|jax|torch|rich|tir)\..*"),
    (r"py:class", "Table"),  # rich's
    (r"py:class", "TypeAliasForwardRef"),  # of Sphinx, for an alias in a signature
    (r"py:class", r"distir_ext\.analysis\.graphs\.program_graph\..*"),  # what a Graph is drawn from
    (r"py:class", r"distir_ext\.hints\.weights\.CutWeights"),  # what Hinted.params does
    (r"py:class", r"distir_ext\.interop\.torch\.generation\.steps\.Layout"),  # of its programs
    (r"py:.*", r"(abc|argparse|collections\.abc|inspect|os|pathlib|types|typing)\..*"),
]


def for_the_site(app, what, name, obj, options, lines):
    """Links pages that docstrings name, ``docs/gpu.md``; lets napoleon see a section of ours."""
    text = re.sub(r"(``|)\bdocs/(\w+)\.md\1", r":doc:`/\2`", "\n".join(lines))
    lines[:] = text.replace("Raises (when applied):", "Raises when applied:").split("\n")


NOTEBOOKS = Path(__file__).parents[1] / "examples" / "notebooks"


def copy_notebooks(app):
    """Sphinx reads its own folder only: ``docs/notebooks`` has what ``examples/notebooks`` has."""
    copies = Path(app.srcdir) / "notebooks"
    copies.mkdir(exist_ok=True)
    texts = {path.name: path.read_bytes() for path in NOTEBOOKS.glob("*.ipynb")}
    for old in copies.iterdir():
        if old.name not in texts:
            old.unlink()
    for name, text in texts.items():
        copy = copies / name
        if not copy.exists() or copy.read_bytes() != text:
            copy.write_bytes(text)


def to_notebooks(app, doctree):
    """Links of ``examples/notebooks`` lead to its pages."""
    for link in doctree.findall(pending_xref):
        target = Path(link["reftarget"])
        if target.parent == NOTEBOOKS:
            link["reftarget"] = f"notebooks/{target.name}"


def public_bases(app, name, obj, options, bases):
    """Leaves out the classes that give results their tables."""
    bases[:] = [each for each in bases if each.__module__ != "distir_ext.text.display"] or [object]


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-bases", public_bases)
    app.connect("builder-inited", copy_notebooks)
    app.connect("doctree-read", to_notebooks)
    app.connect("autodoc-process-docstring", for_the_site, priority=400)  # before napoleon
