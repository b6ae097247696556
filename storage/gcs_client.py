"""One call to Google Cloud Storage: gcsfs's session, credentials and endpoint, with retries of our own.

gcsfs's retries have no deadline and don't say whether an attempt before may have been carried out unseen, which whoever
makes a conditional write has to know.
"""

import base64
import json
import os
import random
import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import aiohttp
import google_crc32c
from fsspec.asyn import sync
from google.auth.exceptions import GoogleAuthError, TransportError

from storage import pulse
from storage.gcs_errors import message, no_answer, no_credentials

# Else gcsfs asks for each bucket's layout by gRPC first, which an emulator leaves hanging for a minute.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
from gcsfs.core import GCSFileSystem
from gcsfs.retry import HttpError, NonRetryableError

_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_PIECE = 1 << 20
_SLOWEST = 1e6
"""Bytes a second below which an upload counts as stuck."""


@dataclass(frozen=True)
class Patience:
    """How long a call is tried: no attempt starts after `deadline` seconds; pauses double from `first` to `longest`.

    A pause is drawn between 0 and its length, so that callers who failed together don't come back together.
    """

    deadline: float = 50.0
    first: float = 0.5
    longest: float = 16.0
    silence: float = 30.0
    """Seconds without a byte after which an attempt has failed."""


PATIENCE = Patience()


@dataclass(frozen=True)
class Body:
    """What an upload sends: a JSON resource and the object's bytes."""

    resource: Mapping[str, Any]
    data: bytes


@dataclass(frozen=True)
class _Raw:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer(_Raw):
    """The answer that counts, and how many attempts it took."""

    attempts: int


class Client:
    """Calls that are safe in threads. A spawned process makes a client of its own; a forked one must not use it."""

    def __init__(self, patience: Patience) -> None:
        """GcsFailure where there are no credentials. `STORAGE_EMULATOR_HOST` names an emulator, which needs none."""
        self._patience = patience
        emulator = _emulator()
        try:
            self._gcs = _Session(
                endpoint_url=emulator,
                token="anon" if emulator else "google_default",
                access="read_write",
                session_kwargs={"trust_env": not emulator},
                use_listings_cache=False,
                skip_instance_cache=True,
            )
        except GoogleAuthError as error:
            raise no_credentials(error) from error

    def call(
        self, method: str, path: str, *names: str, headers: Mapping[str, str] | None = None, body: Body | None = None,
        deadline: float | None = None, **query: Any,
    ) -> Answer:  # fmt: skip
        """Call until an answer counts. GcsFailure where none does in time or there are no credentials.

        Parts `{}` of `path` are filled with the quoted `names`. A body is sent by a multipart upload.
        """
        seconds = self._patience.deadline if deadline is None else deadline
        started, attempts, pause = time.monotonic(), 0, self._patience.first
        while True:
            attempts += 1
            answer = self._attempt(method, path, *names, headers=headers, body=body, query=query)
            if isinstance(answer, _Raw):
                return Answer(answer.status, answer.headers, answer.body, attempts)
            rest = random.uniform(0, pause)
            if time.monotonic() - started + rest > seconds:
                raise no_answer(seconds, answer)
            pulse.beat()
            time.sleep(rest)
            pause = min(pause * 2, self._patience.longest)

    def _attempt(self, method: str, path: str, *names: str, **more: Any) -> "_Raw | str":
        """The answer, or in words why it is worth another attempt."""
        try:
            silence = self._patience.silence
            raw = cast(_Raw, sync(self._gcs.loop, self._gcs.once, method, path, *names, silence=silence, **more))
        except (aiohttp.ClientError, TransportError, OSError) as error:
            return (str(error).splitlines() or [""])[0][:120] or type(error).__name__
        except (GoogleAuthError, HttpError, NonRetryableError) as error:
            raise no_credentials(error) from error
        if raw.status in _AGAIN:
            return f"{raw.status} {message(raw.body)}"
        return "the bytes that came have another checksum than the service names" if _damaged(raw) else raw


class _Session(GCSFileSystem):
    """gcsfs without its retries and its reading of answers."""

    async def once(
        self, method: str, path: str, *names: str, headers: Mapping[str, str] | None, body: Body | None,
        silence: float, query: Mapping[str, Any],
    ) -> _Raw:  # fmt: skip
        session = await self._set_session()
        url = self._format_path(self._location + path, names)
        total = None if body is None else silence + len(body.data) / _SLOWEST
        limits = aiohttp.ClientTimeout(total=total, sock_connect=silence, sock_read=silence)
        sent = dict(headers or {})
        pieces = None
        if body is not None:
            head, tail, sent["Content-Type"] = _frame(body.resource)
            sent["Content-Length"] = str(len(head) + len(body.data) + len(tail))
            pieces = _pieces(head, body.data, tail)
        params = self._get_params(dict(query))
        async with session.request(
            method, url, params=params, headers=self._get_headers(sent), data=pieces, timeout=limits
        ) as answer:
            return _Raw(answer.status, answer.headers, await _body(answer))


def _emulator() -> str | None:
    """Where `STORAGE_EMULATOR_HOST` says that storage is emulated; it may leave out the scheme."""
    host = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    if host in ("", "default"):
        return None
    return host if "://" in host else f"http://{host}"


def _frame(resource: Mapping[str, Any]) -> tuple[bytes, bytes, str]:
    """What stands before and after the object's bytes in a multipart/related body, and its content type."""
    mark = f"headrace-{random.getrandbits(128):032x}"
    head = f"--{mark}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(resource)}\r\n"
    head += f"--{mark}\r\nContent-Type: {resource['contentType']}\r\n\r\n"
    return head.encode(), f"\r\n--{mark}--\r\n".encode(), f"multipart/related; boundary={mark}"


async def _pieces(head: bytes, data: bytes, tail: bytes) -> AsyncIterator[bytes]:
    """The body without a copy of the data as a whole."""
    yield head
    for at in range(0, len(data), _PIECE):
        pulse.beat()
        yield data[at : at + _PIECE]
    yield tail


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """The bytes of an answer; they may take long, and it is progress that they come."""
    pieces = []
    async for piece in answer.content.iter_chunked(_PIECE):
        pulse.beat()
        pieces.append(piece)
    return b"".join(pieces)


def crc32c(data: bytes) -> str:
    """The checksum as the JSON API writes it."""
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


def _damaged(raw: _Raw) -> bool:
    """Whether a whole object arrived with other bytes than its checksum says."""
    named = re.search(r"crc32c=([^, ]+)", raw.headers.get("X-Goog-Hash", ""))
    return raw.status == 200 and named is not None and named[1] != crc32c(raw.body)
