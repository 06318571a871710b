"""How Sphinx builds the documentation: ``make docs``. Every warning is an error there."""

import re
import sys
from pathlib import Path

from distir_ext import __version__

project = "distir_ext"
copyright = "the distir_ext contributors"
release = version = __version__

sys.path.append(str(Path(__file__).parent))  # command_pages
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "command_pages",
]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = f"distir_ext {release}"

myst_heading_anchors = 3  # links such as annotate.md#by-a-plan-on-names
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
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
    (r"py:class", r"distir_ext\.analysis\.program_graph\..*"),  # what a Graph is drawn from
    (r"py:.*", r"(argparse|collections\.abc|os|pathlib|typing)\..*"),
]


def for_the_site(app, what, name, obj, options, lines):
    """Links pages that docstrings name, ``docs/gpu.md``; lets napoleon see a section of ours."""
    text = re.sub(r"(``|)\bdocs/(\w+)\.md\1", r":doc:`/\2`", "\n".join(lines))
    lines[:] = text.replace("Raises (when applied):", "Raises when applied:").split("\n")


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", for_the_site, priority=400)  # before napoleon
