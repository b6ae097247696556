"""Queues by priority."""
