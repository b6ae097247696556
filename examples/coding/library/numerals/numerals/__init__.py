"""Numbers written in other ways."""
