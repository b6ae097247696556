"""A checksum that an Arrow IPC file carries in its own schema's metadata: no flipped bit passes unnoticed.

Arrow checks neither its buffers nor their compression. The metadata stands twice in a file, at the start and in the
footer: the checksum is the SHA-256 of the file with `BLANK` at both places.
"""

import hashlib
from collections.abc import Mapping

KEY = b"headrace.checksum"
BLANK = hashlib.sha256(KEY).hexdigest().encode()
"""What stands in the place of the checksum while it is computed."""


def stamp(data: bytes) -> bytes:
    """The file, written with `BLANK` under `KEY` in its metadata, with its checksum instead."""
    first, last = data.find(BLANK), data.rfind(BLANK)
    checksum = _checksum(data, first, last)
    return b"".join([data[:first], checksum, data[first + len(BLANK) : last], checksum, data[last + len(BLANK) :]])


def holds(data: bytes, metadata: Mapping[bytes, bytes] | None) -> bool:
    """Whether the file has the checksum that its metadata gives."""
    found = (metadata or {}).get(KEY, b"")
    first, last = data.find(found), data.rfind(found)
    return len(found) == len(BLANK) and first < last and _checksum(data, first, last) == found


def _checksum(data: bytes, first: int, last: int) -> bytes:
    view, size = memoryview(data), len(BLANK)
    out = hashlib.sha256(view[:first])
    for part in (BLANK, view[first + size : last], BLANK, view[last + size :]):
        out.update(part)
    return out.hexdigest().encode()
