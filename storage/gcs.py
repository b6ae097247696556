"""A store on Google Cloud Storage: whole uploads with `ifGenerationMatch`, each carrying a token of its own.

Every write is conditional, also a plain one: a request whose answer was lost may still arrive later, and must not undo
what was written since. When a repeated write is refused, the token tells whether the attempt before had won.
"""

import json
import re
import time
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from typing import Any

from schemas.errors import RequestError, RunStopped
from storage.gcs_client import PATIENCE, Answer, Body, Client, Patience, crc32c
from storage.gcs_errors import GcsFailure, names_no_bucket, refusal
from storage.objects import (
    GenerationMismatch,
    ObjectExists,
    ObjectMissing,
    Stat,
    Stored,
    check_key,
    check_prefix,
    is_part,
)

WRITE_PAUSE = 1.0
"""Seconds between two writes of one object by one store: the service takes about one a second."""
PAGE = 1000
"""Most names of one listing request."""
OPENING = 20.0
"""Seconds after which a store that doesn't answer is refused."""
_TO_READ = ("storage.objects.get", "storage.objects.list")
_NEEDED = ("storage.objects.create", "storage.objects.delete", *_TO_READ)
_TOKEN = "headrace-write"
_URL = re.compile(r"gs://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])((?:/[^/]+)*)/?")


class GcsStore:
    """Objects below `gs://bucket/prefix`. Safe in threads and between processes; a forked process must open its own."""

    def __init__(self, url: str, patience: Patience = PATIENCE, write_pause: float = WRITE_PAUSE) -> None:
        """RequestError where the URL names no bucket or there are no credentials; nothing is asked of the service."""
        match = _URL.fullmatch(url)
        if match is None or not all(is_part(part) for part in match[2].split("/")[1:]):
            raise RequestError(f"the store {url} names no bucket and prefix: write gs://bucket or gs://bucket/prefix")
        self._bucket, self._below = match[1], match[2][1:] + "/" if match[2] else ""
        self.url = f"gs://{match[1]}{match[2]}"
        self._made_from = (url, patience, write_pause)
        self.write_pause = write_pause
        self._written: dict[str, tuple[int, float]] = {}
        with self._sentences(opening=True):
            self._client = Client(patience)

    def __reduce__(self) -> tuple[Any, ...]:
        return GcsStore, self._made_from

    def probe(self, *, write: bool = True) -> None:
        """RequestError unless this prefix can be listed, read and, for `write`, written."""
        with self._sentences(opening=True):
            listing = {"prefix": self._below, "maxResults": 1, "fields": "items(name)"}
            self._sound(self._client.call("GET", "/storage/v1/b/{}/o", self._bucket, deadline=OPENING, **listing))
            missing = self._missing_permissions(_NEEDED if write else _TO_READ)
            if missing:
                role = "User" if write else "Viewer"
                raise GcsFailure(
                    f"this account lacks {', '.join(missing)}",
                    f"give it the role Storage Object {role} on {self._bucket}",
                )

    def _missing_permissions(self, needed: Sequence[str]) -> list[str]:
        """What this account may not do here; nothing where the service can't say, as emulators can't."""
        path = "/storage/v1/b/{}/iam/testPermissions?" + "&".join(f"permissions={name}" for name in needed)
        answer = self._client.call("GET", path, self._bucket, deadline=OPENING)
        if answer.status != 200:
            return []
        held = json.loads(answer.body).get("permissions", [])
        return [name for name in needed if name not in held]

    # -- writing ----------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> int:
        generation = self._written.get(key, (None, 0.0))[0]
        while True:
            if generation is None:
                stat = self.head(key)
                generation = stat.generation if stat else 0
            made = self._write(key, data, generation)
            if made:
                return made
            generation = None

    def create(self, key: str, data: bytes) -> int:
        made = self._write(key, data, 0)
        if not made:
            raise ObjectExists(f"{key} is there already")
        return made

    def swap(self, key: str, data: bytes, generation: int) -> int:
        made = self._write(key, data, generation)
        if not made:
            raise GenerationMismatch(f"{key} does not stand at generation {generation}")
        return made

    def delete(self, key: str) -> None:
        with self._sentences(key):
            self._sound(self._call("DELETE", key), 404)
        self._written.pop(key, None)

    def _write(self, key: str, data: bytes, generation: int) -> int | None:
        """The new generation, or None where the object did not stand at `generation`."""
        token, name = uuid.uuid4().hex, self._name(key)
        resource = {
            "name": name,
            "contentType": "application/json" if key.endswith(".json") else "application/octet-stream",
            "cacheControl": "no-store",
            "crc32c": crc32c(data),
            "metadata": {_TOKEN: token},
        }
        query = {"uploadType": "multipart", "ifGenerationMatch": generation, "fields": "generation"}
        if generation:
            self._wait_turn(key)
        with self._sentences(key):
            path, body = "/upload/storage/v1/b/{}/o", Body(resource, data)
            answer = self._sound(self._client.call("POST", path, self._bucket, body=body, **query), 412)
            if answer.status == 412:
                return self._won_unseen(key, token) if answer.attempts > 1 else None
        return self._note(key, int(json.loads(answer.body)["generation"]))

    def _won_unseen(self, key: str, token: str) -> int | None:
        """The generation that an earlier attempt wrote, where its answer was lost and it stands."""
        found = self._resource(key, "generation,metadata")
        if found is None or found.get("metadata", {}).get(_TOKEN) != token:
            return None
        return self._note(key, int(found["generation"]))

    def _note(self, key: str, generation: int) -> int:
        now = time.monotonic()
        if len(self._written) > 1000:
            self._written = {k: w for k, w in self._written.items() if now - w[1] < self.write_pause}
        self._written[key] = (generation, now)
        return generation

    def _wait_turn(self, key: str) -> None:
        """Let the pause since this store's last write of the object pass."""
        rest = self._written.get(key, (0, float("-inf")))[1] + self.write_pause - time.monotonic()
        if rest > 0:
            time.sleep(rest)

    # -- reading ----------------------------------------------------------------------------------------------

    def get(self, key: str) -> Stored:
        with self._sentences(key):
            answer = self._present(key, self._call("GET", key, alt="media"))
            return Stored(answer.body, int(answer.headers["X-Goog-Generation"]))

    def read(self, key: str, start: int, length: int) -> bytes:
        with self._sentences(key):
            if length == 0:
                self._present(key, self._call("GET", key, fields="size"))
                return b""
            part = {"Range": f"bytes={start}-{start + length - 1}"}
            answer = self._present(key, self._call("GET", key, headers=part, alt="media"), 416)
            return b"" if answer.status == 416 else answer.body

    def head(self, key: str) -> Stat | None:
        with self._sentences(key):
            found = self._resource(key, "size,generation,updated")
        if found is None:
            return None
        modified = datetime.fromisoformat(found["updated"]).timestamp()
        return Stat(int(found["size"]), int(found["generation"]), modified)

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> list[str]:
        check_prefix(prefix)
        with self._sentences(prefix):
            return list(islice(self._names(prefix, after, PAGE if limit is None else min(limit + 1, PAGE)), limit))

    def _names(self, prefix: str, after: str, page: int) -> Iterator[str]:
        """Keys in order. The service's offset is inclusive; names that are no keys of ours are passed over."""
        query: dict[str, Any] = {"prefix": self._below + prefix, "maxResults": page}
        query |= {"fields": "items(name),nextPageToken", "startOffset": self._below + after if after else None}
        while True:
            answer = self._sound(self._client.call("GET", "/storage/v1/b/{}/o", self._bucket, **query))
            found = json.loads(answer.body)
            for item in found.get("items", ()):
                key = item["name"][len(self._below) :]
                if key > after and all(is_part(part) for part in key.split("/")):
                    yield key
            if "nextPageToken" not in found:
                return
            query["pageToken"] = found["nextPageToken"]

    # -- calls ------------------------------------------------------------------------------------------------

    def _name(self, key: str) -> str:
        return self._below + check_key(key)

    def _call(self, method: str, key: str, **more: Any) -> Answer:
        return self._client.call(method, "/storage/v1/b/{}/o/{}", self._bucket, self._name(key), **more)

    def _resource(self, key: str, fields: str) -> dict[str, Any] | None:
        """Some fields of the object's metadata; None where there is no object."""
        answer = self._sound(self._call("GET", key, fields=fields), 404)
        return json.loads(answer.body) if answer.status == 200 else None

    def _present(self, key: str, answer: Answer, *fine: int) -> Answer:
        if self._sound(answer, 404, *fine).status == 404:
            raise ObjectMissing(f"there is no object {key} in {self.url}")
        return answer

    def _sound(self, answer: Answer, *fine: int) -> Answer:
        """The answer, unless it is an error that is not `fine`; a missing bucket never is."""
        lost = answer.status == 404 and names_no_bucket(answer.body)
        if answer.status >= 400 and (answer.status not in fine or lost):
            raise refusal(answer.status, answer.body, self._bucket)
        return answer

    @contextmanager
    def _sentences(self, key: str = "", *, opening: bool = False) -> Generator[None]:
        """Failures as one sentence; what was stored before stays whole."""
        try:
            yield
        except GcsFailure as failure:
            if opening:
                raise RequestError(
                    f"the store {self.url} can't be used: {failure.cause}; {failure.remedy}"
                ) from failure
            raise RunStopped(
                f"the store {self.url} failed at `{key}`: {failure.cause}; nothing stored before is lost: "
                f"{failure.remedy}, then run the same command again"
            ) from failure
