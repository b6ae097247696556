"""Caches of limited size."""
