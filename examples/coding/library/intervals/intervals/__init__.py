"""Half-open intervals as pairs (start, end), and what is done with many of them."""
