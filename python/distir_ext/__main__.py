"""Lets ``python -m distir_ext`` run the command ``distir``."""

import sys

from distir_ext.cli import main

if __name__ == "__main__":
    sys.exit(main())
