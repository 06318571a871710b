"""Collectives of lowered programs, for ``distir_ext.analysis`` and ``dx.build``."""
