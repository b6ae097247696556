"""The small project and one Prefect server for all drivers."""

from collections.abc import Iterator

import pytest
from support.projects import project

from flows import prefect_environment

__all__ = ["prefect_url", "project"]


@pytest.fixture(scope="module")
def prefect_url() -> Iterator[str]:
    """The address of a server of its own, as slow to start as servers are."""
    prefect_environment.prepare(quiet=True)
    from prefect.settings import get_current_settings
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=500):
        yield str(get_current_settings().api.url)
