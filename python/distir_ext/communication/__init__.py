"""The collectives of lowered programs: behind ``distir_ext.analysis`` and ``dx.build``."""
