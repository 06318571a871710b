"""Meshes with named axes, how arrays lie on them, and lists of devices as text."""
