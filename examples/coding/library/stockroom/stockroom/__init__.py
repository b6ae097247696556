"""Articles in a stockroom, and orders of them."""
