"""Adds the arguments for tokens and encryption to commands of hosts and of their users."""

from __future__ import annotations

import argparse

from distir_ext.wire.tokens import TOKEN_VARIABLE


def add_credentials(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that both ends of a connection take."""
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"a file with the token that hosts share (default: the variable {TOKEN_VARIABLE})",
    )
    encryption = parser.add_mutually_exclusive_group()
    encryption.add_argument(
        "--tls",
        action="store_true",
        default=None,
        help="encrypt also connections that stay on this machine",
    )
    encryption.add_argument(
        "--insecure",
        action="store_false",
        dest="tls",
        default=None,
        help="encrypt nothing: whoever is between can run programs on the hosts",
    )
    parser.add_argument(
        "--certificate", metavar="FILE", help="use this certificate (PEM), not a new one"
    )
    parser.add_argument("--key", metavar="FILE", help="its private key (PEM)")
    parser.add_argument(
        "--authority",
        metavar="FILE",
        help="accept only certificates that these authorities (PEM) have signed, for the address "
        "that is dialled",
    )
