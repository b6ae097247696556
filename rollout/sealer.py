"""Sealing shards beside the running episodes: one seal at a time, in a thread that then has the writer to itself."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from schemas.trajectory import Trajectory
from storage.shards import ShardWriter


class Sealer:
    """Takes finished trajectories and seals them when they are due. A failed seal surfaces from the next call."""

    def __init__(self, writer: ShardWriter) -> None:
        self._writer = writer
        self._sealing: asyncio.Task[int] | None = None
        self._later: list[Trajectory] = []
        self._held: list[Trajectory] | None = None
        self.unsealed = 0
        """Finished trajectories that stand in no shard yet."""

    @property
    def next_seq(self) -> int:
        return self._writer.next_seq

    def add(self, row: Trajectory) -> None:
        """Keep a finished trajectory for the next shard."""
        self.unsealed += 1
        if self._held is not None:
            self._held.append(row)
        else:
            self._keep(row)

    @contextmanager
    def holding(self) -> Generator[None]:
        """Set aside what finishes meanwhile; dropped, with all that follows, if the engine was not proved then."""
        self._held = held = []
        yield  # an error goes through: whatever it is, there is no proof
        self._held = None
        for row in held:
            self._keep(row)

    def _keep(self, row: Trajectory) -> None:
        if self._sealing is None:
            self._writer.add(row)
        else:
            self._later.append(row)

    def poll(self, *, idle: bool) -> None:
        """Begin to seal if it is time. With nothing in flight (`idle`) it always is."""
        if self._sealing is not None and self._sealing.done():
            self._sealed(self._sealing.result())
        if self._sealing is None and self._writer.due(idle=idle):
            self._sealing = asyncio.ensure_future(asyncio.to_thread(self._writer.seal))

    def _sealed(self, count: int) -> None:
        self._sealing = None
        self.unsealed -= count
        for row in self._later:
            self._writer.add(row)
        self._later.clear()

    async def flush(self) -> None:
        """Seal everything; WriterEnded where the run ended without it."""
        if self._sealing is not None:
            self._sealed(await self._sealing)
        self._sealed(await asyncio.to_thread(self._writer.seal))
