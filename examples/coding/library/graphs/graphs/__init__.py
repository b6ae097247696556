"""Directed graphs as {node: {neighbour: weight}}."""
