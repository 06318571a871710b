"""Code that commands share: arguments, files, clusters, output and messages of failures.

Nothing of TVM is imported here before a command needs it.
"""
