"""The trajectory log as an audit sees it: every row of every shard of every worker, with its digest recomputed."""

import re
from collections import defaultdict
from dataclasses import dataclass, field

from schemas import keys
from schemas.errors import RequestError
from schemas.manifest import WorkerState
from schemas.trajectory import Trajectory, row_digest
from storage.control import read_worker
from storage.objects import ObjectStore, find
from storage.shards import END_MARKER, UnreadableShard, decode_shard

Place = tuple[str, int, int]
"""Where a row stands: worker, shard number, row."""


@dataclass(frozen=True)
class Fact:
    """What an audit keeps of a row."""

    place: Place
    digest: str
    id: str
    run: str
    worker: str
    group: int
    sample: int
    attempt: int
    task_id: str
    seed: int
    oldest: int
    """Oldest and newest policy version among its sampled tokens; -1 where nothing was sampled."""
    newest: int


@dataclass
class Log:
    """All shards of one RL stage."""

    base: str
    rows: dict[Place, Fact] = field(default_factory=dict)
    unreadable: dict[tuple[str, int], str] = field(default_factory=dict)
    """Shard → why it can't be read."""
    shards: set[tuple[str, int]] = field(default_factory=set)
    """Every shard that is there, readable or not."""
    workers: list[str] = field(default_factory=list)
    endless: list[str] = field(default_factory=list)
    """Workers whose shards no end marker follows."""
    formats: set[tuple[str, str]] = field(default_factory=set)
    """Digests of (tokenizer, chat format) that shards name: one run has one."""
    violations: list[str] = field(default_factory=list)


def read_log(store: ObjectStore, base: str) -> Log:
    """Every row in the store. The order of reads matters on a live run: a worker registers before it writes, and
    announces a shard after it is sealed, so keys come first, registrations next, shards last.
    """
    log = Log(base)
    listed = _listed(store, base, log)
    for state in _registrations(store, base, log):
        end = _read_worker(store, log, state)
        beyond = sorted(seq for seq in listed.pop(state.worker, ()) if seq > end)
        if beyond:
            log.violations.append(f"{_missing(base, state.worker, end, store)} though {beyond[0]:08d}.arrow is there")
        elif state.next_seq > end:
            log.violations.append(
                f"{_missing(base, state.worker, end, store)} though its worker says it sealed {state.next_seq}"
            )
    log.violations += [f"{keys.trajectories(base)}/{w} belongs to no registered worker" for w in sorted(listed)]
    if len(log.formats) > 1:
        log.violations.append(f"the shards of {base} name {len(log.formats)} different tokenizers or chat formats")
    return log


def read_rows(store: ObjectStore, base: str, worker: str, seq: int) -> list[Trajectory]:
    """The rows of one shard; UnreadableShard where it is missing or damaged."""
    stored = find(store, keys.shard(base, worker, seq))
    if stored is None or stored.data == END_MARKER:
        raise UnreadableShard("missing")
    return decode_shard(stored.data)[1]


def _listed(store: ObjectStore, base: str, log: Log) -> dict[str, set[int]]:
    """Worker → the shard numbers that a listing shows."""
    found: dict[str, set[int]] = defaultdict(set)
    prefix = f"{keys.trajectories(base)}/"
    for key in store.list(prefix):
        match = re.fullmatch(r"([^/]+)/(\d{8})\.arrow", key.removeprefix(prefix))
        if match:
            found[match[1]].add(int(match[2]))
        else:
            log.violations.append(f"{key} does not belong among shards")
    return found


def _registrations(store: ObjectStore, base: str, log: Log) -> list[WorkerState]:
    """The registered workers; numbers that are missing below the highest are violations."""
    numbers = _numbers(store, base)
    found = []
    for number in range(max(numbers, default=-1) + 1):
        try:
            state = read_worker(store, base, number)
        except RequestError as error:
            log.violations.append(str(error))
            continue
        if state is None:
            log.violations.append(f"{keys.worker(base, number)} is missing: registrations are never deleted")
        else:
            found.append(state[0])
    return found


def _numbers(store: ObjectStore, base: str) -> list[int]:
    names = [key.rsplit("/", 1)[1].removesuffix(".json") for key in store.list(f"{base}/workers/")]
    return [int(name) for name in names if name.isdecimal()]


def _read_worker(store: ObjectStore, log: Log, state: WorkerState) -> int:
    """Read one worker's shards up to its end; returns the first number without one."""
    log.workers.append(state.worker)
    seq = 0
    while (stored := find(store, keys.shard(log.base, state.worker, seq))) is not None:
        if stored.data == END_MARKER:
            return seq
        _read_shard(log, state.worker, seq, stored.data)
        seq += 1
    if seq:
        log.endless.append(state.worker)
    return seq


def _read_shard(log: Log, worker: str, seq: int, data: bytes) -> None:
    log.shards.add((worker, seq))
    try:
        metadata, rows = decode_shard(data)
    except UnreadableShard as error:
        log.unreadable[worker, seq] = error.reason
        return
    log.formats.add((metadata.tokenizer, metadata.chat_format))
    for place, row in enumerate(rows):
        log.rows[worker, seq, place] = _fact((worker, seq, place), row)


def _fact(place: Place, row: Trajectory) -> Fact:
    return Fact(
        place=place,
        digest=row_digest(row),
        id=row.id,
        run=row.run,
        worker=row.worker,
        group=row.group,
        sample=row.sample,
        attempt=row.attempt,
        task_id=row.task_id,
        seed=row.seed,
        oldest=min(row.versions, default=-1),
        newest=max(row.versions, default=-1),
    )


def _missing(base: str, worker: str, seq: int, store: ObjectStore) -> str:
    key = keys.shard(base, worker, seq)
    return f"{key} is an end marker" if find(store, key) else f"{key} is missing"
