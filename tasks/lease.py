"""Leases: one driver per run, one firing per schedule, one player per evaluation, by compare-and-swap on a document.

A lease has expired when its generation did not change for its time on the observer's own monotonic clock. A released
one, or one of a process of this host and container that is dead, is free at once. Whoever loses a lease must stop.
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import HeadraceError, RequestError
from schemas.manifest import Lease
from storage.documents import read_document
from storage.objects import GenerationMismatch, ObjectStore, find

SECONDS = 15.0
"""How long a lease lives without renewal; it is renewed three times as often."""


class LeaseTaken(RequestError):
    """Somebody else holds the lease and renews it."""


class HeldLease:
    """A lease that this process holds and renews in a thread until `release`."""

    def __init__(
        self, store: ObjectStore, key: str, lease: Lease, generation: int, on_lost: Callable[[], None]
    ) -> None:
        self._store, self._key, self._lease, self._generation = store, key, lease, generation
        self._on_lost, self._done = on_lost, threading.Event()
        self.lost = False
        self._thread = threading.Thread(target=self._renew, name=f"lease {key}", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Stop renewing and give the lease back, unless it was lost."""
        self._done.set()
        self._thread.join()
        if not self.lost:
            try:
                self._write(released=True)
            except GenerationMismatch:
                self.lost = True

    def _renew(self) -> None:
        """Renew until released. A store that fails for the lease's time has let it expire."""
        renewed = time.monotonic()
        while not self._done.wait(self._lease.seconds / 3):
            try:
                self._write(released=False)
                renewed = time.monotonic()
            except HeadraceError as error:
                if isinstance(error, GenerationMismatch) or time.monotonic() - renewed > self._lease.seconds:
                    self.lost = True
                    self._on_lost()
                    return

    def _write(self, *, released: bool) -> None:
        self._lease = self._lease.model_copy(update={"beat": self._lease.beat + 1, "released": released})
        self._generation = self._store.swap(self._key, self._lease.to_bytes(), self._generation)


def acquire(
    store: ObjectStore,
    key: str,
    what: str,
    doing: str = "driven",
    *,
    run: str = "",
    seconds: float = SECONDS,
    on_lost: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> HeldLease:
    """Take the lease, waiting at most its time for a silent holder. LeaseTaken once the holder is seen to renew it.

    `what` is being `doing`, in the sentence that says so.
    """
    lease = Lease(
        owner=secrets.token_hex(6), host=socket.gethostname(), pid=os.getpid(), processes=visible_processes(),
        seconds=seconds, beat=0, run=run,
    )  # fmt: skip
    first_seen: tuple[int, float] | None = None
    while True:
        stored = find(store, key)
        standing = Lease.from_bytes(stored.data, key) if stored else None
        generation = stored.generation if stored else 0
        if first_seen is None:
            first_seen = (generation, clock())
        if standing is None or _free(standing) or clock() - first_seen[1] >= standing.seconds:
            try:
                return HeldLease(store, key, lease, store.swap(key, lease.to_bytes(), generation), on_lost)
            except GenerationMismatch:
                continue
        if generation != first_seen[0]:
            raise LeaseTaken(
                f"{what} is being {doing} by process {standing.pid} on {standing.host}: wait for it, or stop it first"
            )
        sleep(0.1)


@contextmanager
def hold(
    store: ObjectStore,
    key: str,
    what: str,
    doing: str = "driven",
    *,
    run: str = "",
    on_lost: Callable[[], None] = lambda: None,
) -> Generator[HeldLease]:
    """Hold a lease for the time of a block."""
    held = acquire(store, key, what, doing, run=run, on_lost=on_lost)
    try:
        yield held
    finally:
        held.release()


def is_held(store: ObjectStore, key: str) -> bool:
    """Whether somebody seems to hold the lease: for display only, since nothing is waited for."""
    standing = read_document(store, Lease, key)
    return standing is not None and not _free(standing)


def is_alive(
    store: ObjectStore,
    key: str,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Whether `acquire` would be refused: watches the lease, at most for its time, without taking it."""
    first: tuple[int, float] | None = None
    while True:
        stored = find(store, key)
        if stored is None or _free(standing := Lease.from_bytes(stored.data, key)):
            return False
        first = first or (stored.generation, clock())
        if stored.generation != first[0]:
            return True
        if clock() - first[1] >= standing.seconds:
            return False
        sleep(0.1)


def _free(lease: Lease) -> bool:
    here = lease.host == socket.gethostname() and lease.processes == visible_processes()
    return lease.released or (here and not _alive(lease.pid))


def visible_processes() -> str:
    """Names the processes that this one sees: containers may share a host's name, but not its processes."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return ""
    return f"{boot.read_text().strip()} {os.readlink('/proc/self/ns/pid')}"


def _alive(pid: int) -> bool:
    """Whether a process of this host lives; one that only waits to be reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
