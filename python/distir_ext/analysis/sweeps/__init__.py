"""One program on many meshes and with many plans."""
