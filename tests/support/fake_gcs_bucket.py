"""The objects of the fake Google Cloud Storage: generations, preconditions, listings. No HTTP here.

Semantics follow https://cloud.google.com/storage/docs/json_api/v1/objects and .../docs/request-preconditions.
"""

import base64
import hashlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import google_crc32c

Resource = dict[str, Any]


class Problem(Exception):
    """An answer that is an error: status, reason and message as the JSON API gives them."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass(frozen=True)
class Conditions:
    """`ifGenerationMatch` and its kin; None: not given. A generation of 0 means that there is no object."""

    match: int | None = None
    not_match: int | None = None
    metageneration: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Conditions":
        names = ("ifGenerationMatch", "ifGenerationNotMatch", "ifMetagenerationMatch")
        return cls(*(int(query[n]) if n in query else None for n in names))

    def check(self, generation: int, *, reading: bool = False) -> None:
        """Problem 412 where they don't hold; 304 for a read of what the reader has."""
        if self.not_match is not None and self.not_match == generation:
            raise Problem(304 if reading else 412, "conditionNotMet", _PRECONDITION)
        wrong = self.match is not None and self.match != generation
        if wrong or (self.metageneration not in (None, 1) and generation):
            raise Problem(412, "conditionNotMet", _PRECONDITION)


_PRECONDITION = "At least one of the pre-conditions you specified did not hold."


@dataclass(frozen=True)
class Object:
    """An object as it stands."""

    data: bytes
    resource: Resource

    @property
    def generation(self) -> int:
        return int(self.resource["generation"])


def crc32c(data: bytes) -> str:
    """The checksum as the JSON API writes it."""
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


@dataclass
class Bucket:
    """A bucket. Every call is atomic."""

    name: str
    objects: dict[str, Object] = field(default_factory=dict)
    hasty: list[str] = field(default_factory=list)
    """Names that were overwritten less than a second after they had been written: the service may throttle that."""
    _written: dict[str, float] = field(default_factory=dict)
    _last: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def insert(self, name: str, data: bytes, given: Resource, conditions: Conditions) -> Resource:
        """Write an object whole if the conditions hold; `given` may carry metadata and a checksum to hold."""
        if not name:
            raise Problem(400, "required", "Required")
        if given.get("crc32c", crc32c(data)) != crc32c(data):
            raise Problem(400, "invalid", f"Provided CRC32C {given['crc32c']} doesn't match calculated CRC32C")
        with self._lock:
            conditions.check(self._generation(name))
            self._note(name)
            self._last = max(self._last + 1, time.time_ns() // 1000)
            resource = self._resource(name, data, given, self._last)
            self.objects[name] = Object(data, resource)
            return resource

    def get(self, name: str, conditions: Conditions, generation: int | None = None) -> Object:
        with self._lock:
            found = self.objects.get(name)
            if found is None or generation not in (None, found.generation):
                raise self._missing(name)
            conditions.check(found.generation, reading=True)
            return found

    def delete(self, name: str, conditions: Conditions) -> None:
        with self._lock:
            if name not in self.objects:
                raise self._missing(name)
            conditions.check(self._generation(name))
            del self.objects[name]

    def list(self, query: Mapping[str, str]) -> Resource:
        """One page, by `prefix`, `startOffset` (inclusive), `endOffset` (exclusive), `delimiter`, `maxResults`.

        Names come in the order of their UTF-8 bytes. The page token is the last name of the page before.
        """
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        start, end, token = query.get("startOffset", ""), query.get("endOffset"), query.get("pageToken", "")
        room = min(int(query.get("maxResults", "1000")), 1000)
        if room < 1:
            raise Problem(400, "invalid", "Invalid unsigned integer value: maxResults")
        items: list[Resource] = []
        folders: dict[str, None] = {}
        last = ""
        with self._lock:
            for name in sorted(self.objects, key=str.encode):
                if not name.startswith(prefix) or name < start or (end and name >= end) or (token and name <= token):
                    continue
                rest = name[len(prefix) :]
                folder = prefix + rest[: rest.index(delimiter) + 1] if delimiter and delimiter in rest else ""
                if folder and (folder in folders or token.startswith(folder)):
                    continue
                if len(items) + len(folders) == room:
                    return _page(items, folders, last)
                last = name
                if folder:
                    folders[folder] = None
                else:
                    items.append(self.objects[name].resource)
        return _page(items, folders, "")

    def _generation(self, name: str) -> int:
        return self.objects[name].generation if name in self.objects else 0

    def _note(self, name: str) -> None:
        now = time.monotonic()
        if name in self.objects and now - self._written.get(name, now - 9) < 1.0:
            self.hasty.append(name)
        self._written[name] = now

    def _resource(self, name: str, data: bytes, given: Resource, generation: int) -> Resource:
        now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
        kept = {k: given[k] for k in ("metadata", "cacheControl", "contentEncoding") if k in given}
        return kept | {
            "kind": "storage#object",
            "id": f"{self.name}/{name}/{generation}",
            "bucket": self.name,
            "name": name,
            "size": str(len(data)),
            "generation": str(generation),
            "metageneration": "1",
            "contentType": given.get("contentType", "application/octet-stream"),
            "crc32c": crc32c(data),
            "md5Hash": base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode(),
            "etag": base64.b64encode(str(generation).encode()).decode(),
            "storageClass": "STANDARD",
            "timeCreated": now,
            "updated": now,
        }

    def _missing(self, name: str) -> Problem:
        return Problem(404, "notFound", f"No such object: {self.name}/{name}")


def _page(items: list[Resource], folders: dict[str, None], token: str) -> Resource:
    page: Resource = {"kind": "storage#objects"}
    if items:
        page["items"] = items
    if folders:
        page["prefixes"] = list(folders)
    return page | ({"nextPageToken": token} if token else {})
