"""A stack machine, and expressions for it."""
