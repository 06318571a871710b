"""What commands share: arguments, files, clusters, output, and how failures are said.

Nothing of TVM is imported here before a command needs it.
"""
