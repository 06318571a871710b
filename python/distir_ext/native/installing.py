"""The native library: loading it, its warnings, its operators in TVMScript."""

from tvm_ffi.error import register_error

from distir_ext.native import script, warnings


def install() -> None:
    """Lets TVMScript parse the library's operators, and Python log its warnings.

    What ends a program stays what it is when it goes through a pass or a compiler: Ctrl-C during
    ``dx.build`` was ``RuntimeError('')``.
    """
    script.install()
    warnings.install()
    for each in (KeyboardInterrupt, SystemExit):
        register_error(each.__name__, each)
