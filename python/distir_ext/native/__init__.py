"""The native library and what it says: loading it, its passes and their reports, TVMScript.

Also the executables, CUDA's compiler and libraries, and BLAS, wherever packages have put them.
Importing this package loads nothing; ``installing`` does.
"""
