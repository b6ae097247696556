"""Words: found by their beginnings, and compared."""
