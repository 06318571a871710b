"""Drawings, one file per picture: what is shown, and text, SVG and matplotlib that draw it.

A drawing knows no result but the data that it draws.
"""
