"""The servers of one engine: all on the same weights, a dead one replaced by a new one with the newest.

Servers are the worker's own process or given by URL. A session stays with one server while that server lives, for its
prefix cache; a new one goes to the server with the fewest requests.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from models.config import DecoderConfig
from rollout.adapted import Adapted
from rollout.engine import EngineUnfit
from rollout.sglang_server import SglangServer
from rollout.vllm_check import check_server
from rollout.vllm_client import Refused, ServerFailed, ServerGone, VllmClient
from rollout.vllm_server import VllmServer, interpreter
from rollout.vllm_weights import WeightsFolder
from schemas.config import Servers, SglangServers
from schemas.errors import RequestError, RunStopped

Found = TypeVar("Found")
FAILURES = 3
"""Times a request may fail on a living server."""
SAME = 1e-3
"""Largest difference between two scores of the same weights by a server that was started again."""
BACK_SECONDS = 1.0
"""How often a server that somebody else starts is looked for."""


@dataclass(frozen=True)
class Held:
    """What all servers of an engine hold, or are about to."""

    folder: Path
    """Whole weights."""
    version: int
    adapter: Path | None = None
    """The folder of the adapters that are added to them."""
    rank: int = 0
    """Of the adapters; 0: there are none."""


@dataclass
class Server:
    """A server as its engine sees it."""

    client: VllmClient
    process: VllmServer | None
    """None for a server given by URL."""
    folder: Path | None = None
    """The folder of the whole weights that it holds."""
    in_flight: int = 0
    up: bool = True
    returning: asyncio.Task[None] | None = None
    """Its replacement once it is gone. It outlives the requests that wait for it, and stays if it fails."""
    worked: bool = False
    """Whether it has answered a request since it was last started."""
    restarts: int = 0


class VllmFleet:
    """Starts or joins the servers with the first weights that they are given."""

    def __init__(self, config: DecoderConfig, settings: Servers, context: int, slots: int) -> None:
        kind = SglangServer if isinstance(settings, SglangServers) else VllmServer
        python = None if settings.urls else interpreter(settings)
        self._config, self._settings, self._context, self._owner = config, settings, context, uuid.uuid4().hex[:10]
        self._scratch = WeightsFolder(settings.folder, config)
        self._process = kind(python, settings, self._scratch.path, context, slots) if python else None
        self._servers: list[Server] = []
        self._held: Held | None = None
        self._weighing = asyncio.Lock()
        """Held by whatever starts servers or changes their weights."""
        self._sessions: dict[str, Server] = {}
        self._scored: tuple[tuple[int, ...], tuple[float, ...]] | None = None
        """The last score of the weights that are held, by which a server that was started again is checked."""

    @property
    def restarts(self) -> int:
        """Times a server was replaced."""
        return sum(server.restarts for server in self._servers)

    # -- asking ------------------------------------------------------------------------------------------------

    async def ask(self, session: str, work: Callable[[VllmClient], Awaitable[Found]]) -> tuple[Found, str]:
        """The answer of the session's server, or of another where that one is gone, and the server's URL."""
        while True:
            server = self._choose(session)
            server.in_flight += 1
            try:
                return await self._try(server, work), server.client.url
            except ServerGone:
                self.release(session)
                if not any(other.up for other in self._servers):
                    await self._returned(server)
            finally:
                server.in_flight -= 1

    async def score(self, token_ids: tuple[int, ...]) -> dict[str, tuple[float, ...]]:
        """Every server's log-probs of token_ids[1:], by its URL."""
        found: dict[str, tuple[float, ...]] = {}
        waiting = list(self._servers)
        while waiting:
            try:
                answer = await self._try(waiting[0], lambda client: client.score(token_ids))
                found[waiting.pop(0).client.url] = answer
            except ServerGone:
                await self._returned(waiting[0])
        self._scored = token_ids, next(iter(found.values()))
        return found

    def release(self, session: str) -> None:
        """The session may go to another server next time."""
        self._sessions.pop(session, None)

    def _choose(self, session: str) -> Server:
        """The session's own server, else the least busy; one that is down only where all are."""
        own = self._sessions.get(session)
        if own is None or not own.up:
            own = min(self._servers, key=lambda s: (not s.up, s.in_flight))
            self._sessions[session] = own
        return own

    async def _try(self, server: Server, work: Callable[[VllmClient], Awaitable[Found]]) -> Found:
        """The server's answer. ServerGone where it is being replaced: ask again, perhaps another."""
        client, failures = server.client, 0
        while True:
            try:
                if not server.up:
                    raise ServerGone("it is being started again")
                answer = await work(client)
            except ServerGone as gone:
                self._lost(server, client, str(gone))
                raise
            except Refused as error:
                raise RequestError(f"{client.title} refuses the request ({error})") from error
            except ServerFailed as error:
                failures += 1
                if failures == FAILURES:
                    raise RunStopped(f"{client.title} failed {FAILURES} times ({error})") from error
            else:
                server.worked = True
                return answer

    # -- weights -----------------------------------------------------------------------------------------------

    async def take(self, params: Any, version: int) -> None:
        """Give weights, whole or `Adapted`, to every server, beginning with the servers themselves the first time."""
        async with self._weighing:
            old, self._scored = self._held, None
            self._held = await asyncio.to_thread(self._written, params, version)
            if self._servers:
                await asyncio.gather(*[self._give(server) for server in self._servers])
            else:
                self._servers = await self._begin()
            if old is not None and old.folder != self._held.folder:
                await asyncio.to_thread(self._scratch.remove, old.folder)

    def _written(self, params: Any, version: int) -> Held:
        """Put weights where servers find them; blocking."""
        if not isinstance(params, Adapted):
            return Held(self._scratch.write(params, version), version)
        base = params.base
        folder = self._weights().folder if base is None else self._scratch.write(base, version)
        return Held(folder, version, self._scratch.write_adapter(params.files), params.rank)

    async def close(self) -> None:
        """End the worker's own server; leave the others as they are."""
        returning = {server.returning for server in self._servers if server.returning is not None}
        for task in returning:
            task.cancel()
        if returning:
            await asyncio.wait(returning)
        async with self._weighing:
            for server in self._servers:
                await server.client.close()
            if self._process is not None:
                await self._process.stop()
        await asyncio.to_thread(self._scratch.remove)

    async def _begin(self) -> list[Server]:
        if self._process is not None:
            return [Server(await self._started(self._process), self._process, self._weights().folder)]
        servers = [Server(VllmClient(url, self._owner, self._settings.label), None) for url in self._settings.urls]
        try:
            for server in servers:
                await self._join(server)
        except BaseException:
            await asyncio.gather(*[server.client.close() for server in servers])
            raise
        return servers

    async def _started(self, process: VllmServer) -> VllmClient:
        held = self._weights()
        client = await process.start(held.folder, self._owner, held.rank)
        try:
            if held.adapter is None:
                await client.set_version(held.version)
            else:
                await self._hand(client, None)
        except ServerGone as gone:
            await client.close()
            raise _stillborn(client, process.cause()) from gone
        except BaseException:
            await client.close()
            raise
        return client

    async def _join(self, server: Server) -> None:
        """Look at a server that was given by URL, then give it the weights. RequestError where it is of no use."""
        await self._check(server.client)
        try:
            await self._load(server)
        except ServerGone as gone:
            raise _stillborn(server.client, str(gone)) from gone

    async def _check(self, client: VllmClient) -> None:
        await check_server(client, self._config, self._context, self._weights().rank, self._settings.start_seconds)

    async def _give(self, server: Server) -> None:
        """Give the weights that are held to a running server, or to its successor if it is gone or dies of it.

        EngineUnfit where it went away before and could not be replaced.
        """
        if server.returning is not None and server.returning.done():
            await server.returning
        try:
            await self._load(server)
        except ServerGone as gone:
            server.up = False
            await self._restart(server, str(gone))

    async def _load(self, server: Server) -> None:
        held = self._weights()
        await self._hand(server.client, None if server.folder == held.folder else held.folder)
        server.folder = held.folder

    async def _hand(self, client: VllmClient, folder: Path | None) -> None:
        """Give a running server the weights in `folder`, if it has others, and the adapters that are held."""
        held, seconds = self._weights(), self._settings.start_seconds
        what = f"{client.title} did not take policy {held.version}"
        try:
            async with asyncio.timeout(seconds):
                await client.load(folder, held.version, held.adapter)
        except TimeoutError as error:
            raise RunStopped(f"{what} within {self._settings.part}.start_seconds = {seconds:g}") from error
        except (Refused, ServerFailed) as error:
            raise RunStopped(f"{what} ({error})") from error

    def _weights(self) -> Held:
        assert self._held is not None  # set before any server is begun with
        return self._held

    # -- replacing ---------------------------------------------------------------------------------------------

    def _lost(self, server: Server, client: VllmClient, cause: str) -> None:
        """Have a server that is gone started again, unless somebody has seen to it meanwhile."""
        if server.client is client:
            server.up = False
            if server.returning is None:
                server.returning = asyncio.ensure_future(self._replace(server, client, cause))
                server.returning.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _returned(self, server: Server) -> None:
        """Wait until a server has been replaced. EngineUnfit where it can't be."""
        if server.returning is not None:
            await asyncio.shield(server.returning)

    async def _replace(self, server: Server, client: VllmClient, cause: str) -> None:
        async with self._weighing:
            if server.client is client and not server.up:
                try:
                    await self._restart(server, cause)
                except RunStopped as error:
                    raise EngineUnfit(str(error)) from error
        server.returning = None

    async def _restart(self, server: Server, cause: str) -> None:
        url, title, process = server.client.url, server.client.title, server.process
        if process is not None:
            await process.stop()
            cause = process.cause()
        if not server.worked:
            raise _stillborn(server.client, cause)
        if server.restarts == self._settings.restarts:
            limit = f"{self._settings.part}.restarts = {server.restarts}"
            raise RunStopped(f"{title} died, or was started again, more often than {limit} allows: {cause}")
        server.restarts, server.worked = server.restarts + 1, False
        await server.client.close()
        try:
            if process is not None:
                server.client, server.folder = await self._started(process), self._weights().folder
            else:
                server.client, server.folder = await self._back(url, cause), None
                await self._load(server)
            await self._check_again(server.client)
        except ServerGone as gone:
            raise _stillborn(server.client, process.cause() if process is not None else str(gone)) from gone
        server.up = True

    async def _back(self, url: str, cause: str) -> VllmClient:
        """Wait for a server that somebody else will start again, or has, and see that it is of use."""
        client, seconds = VllmClient(url, self._owner, self._settings.label), self._settings.start_seconds
        end = time.monotonic() + seconds
        while not await client.healthy():
            if time.monotonic() > end:
                await client.close()
                raise RunStopped(f"{client.title} went away ({cause}) and did not come back within {seconds:g} s")
            await asyncio.sleep(BACK_SECONDS)
        try:
            await self._check(client)
        except RequestError as error:
            await client.close()
            raise RunStopped(f"{client.title} was started again in another way: {error}") from error
        return client

    async def _check_again(self, client: VllmClient) -> None:
        """Whether a server that was started again scores as before. New weights are proved by whoever gave them."""
        if self._scored is None:
            return
        token_ids, before = self._scored
        off = max(abs(a - b) for a, b in zip(before, await client.score(token_ids), strict=True))
        if not off <= SAME:
            raise RunStopped(
                f"{client.title} was started again and gives the probe log-probs up to {off:.2g} from those "
                f"before: it does not hold the same weights"
            )


def _stillborn(client: VllmClient, cause: str) -> RunStopped:
    """What becomes of a server that was just started, or started again: it would die of the same once more."""
    return RunStopped(f"{client.title} died before it answered anything: {cause}")
