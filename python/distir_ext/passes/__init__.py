"""The passes: ``dx.transform``, dumps of modules between them, and checks of foreign passes.

Each is an ordinary ``tvm.transform.Pass``.
"""
