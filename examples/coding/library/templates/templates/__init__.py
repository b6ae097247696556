"""Texts with places to fill."""
