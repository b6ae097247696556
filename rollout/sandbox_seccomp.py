"""A filter of system calls for bubblewrap: those that take memory no limit counts, or that only kernel exploits want.

It is a classic BPF program (seccomp(2)), of which the format and the call numbers of two machines are written here.
"""

import contextlib
import os
import platform
import struct
from collections.abc import Generator

_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_DENIED: dict[str, tuple[int, int]] = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "userfaultfd": (323, 282),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
"""Numbers on x86_64 and aarch64."""
_LOAD, _EQUAL, _LESS_NOT, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | 1  # with EPERM
_X32 = 0x40000000


def program(machine: str) -> bytes:
    """The filter for a machine; b"" for one whose call numbers aren't known here."""
    if machine not in _MACHINES:
        return b""
    architecture, column = _MACHINES[machine]
    numbers = [pair[column] for pair in _DENIED.values()]
    checks = [_step(_EQUAL, number, len(numbers) - at, 0) for at, number in enumerate(numbers)]
    steps = [
        _step(_LOAD, 4),
        _step(_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),  # a call of another machine's kind, with other numbers
        _step(_LOAD, 0),
        _step(_LESS_NOT, _X32, len(numbers) + 1, 0),
        *checks,
        _step(_RETURN, _ALLOW),
        _step(_RETURN, _REFUSE),
    ]
    return b"".join(steps)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


@contextlib.contextmanager
def filter_file() -> Generator[int | None]:
    """An open file with this machine's filter, or None."""
    found = program(platform.machine())
    if not found:
        yield None
        return
    reader, writer = os.pipe()
    try:
        with os.fdopen(writer, "wb") as file:
            file.write(found)
        yield reader
    finally:
        os.close(reader)
