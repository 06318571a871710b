"""The native library: loading it, its warnings, its operators in TVMScript."""

from distir_ext.native import script, warnings


def install() -> None:
    """Lets TVMScript parse the library's operators, and Python log its warnings."""
    script.install()
    warnings.install()
