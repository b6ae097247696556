"""The version of everything that is written to the store. A reader refuses what another version wrote."""

from importlib import metadata

SCHEMA_VERSION = 4
"""Raised when a stored format changes: a column, a status, a field of a document, a key."""

ROOMS = ("schemas", "storage", "models", "rollout", "trainer", "tasks", "flows")
"""The top-level packages of the distribution, lowest first."""


def code_version() -> str:
    """The installed distribution's version, recorded in manifests and shards."""
    return metadata.version("headrace")
