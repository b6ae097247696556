"""Accounts in cents."""
