"""Tables in text, one record a line."""
