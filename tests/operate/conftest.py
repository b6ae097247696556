"""One real Prefect server for all that is operated here; schedules whose stages are stand-ins."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.prefect_site import Site, server
from support.projects import project
from support.scheduled import Scheduled, stand_ins

__all__ = ["project"]
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with server(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def scheduled(site: Site, project: Path) -> Iterator[Scheduled]:
    """The small project as a schedule of its own name; nothing is deployed or started yet."""
    made = stand_ins(site, project, f"nightly{next(_numbers)}")
    try:
        yield made
    finally:
        made.close()
