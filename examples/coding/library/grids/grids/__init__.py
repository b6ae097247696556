"""Grids of cells as lists of lists."""
