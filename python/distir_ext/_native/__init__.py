"""The native library: loading it, its warnings, its operators in TVMScript."""

from distir_ext._native import (
    library,  # first: loads the native library  # noqa: F401
    script,
    warnings,
)


def install() -> None:
    """Lets TVMScript parse the library's operators, and Python log its warnings."""
    script.install()
    warnings.install()
