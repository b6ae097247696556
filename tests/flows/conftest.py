"""One Prefect server for all tests of the flow; the small project and the stand-ins for its processes."""

from collections.abc import Iterator

import pytest
from support.projects import fakes, project, root

from flows import prefect_environment

__all__ = ["fakes", "prefect_server", "project", "root"]


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """A server of its own, as slow to start as servers are."""
    prefect_environment.prepare(quiet=True)
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=500):
        yield
