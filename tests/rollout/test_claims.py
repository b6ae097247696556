"""Claims between workers: each group once, takeovers of the dead only, and only what is missing."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.protocol import BASE, METADATA, trajectory
from support.rollouts import config

from rollout.claims import Assignment, ClaimBoard
from schemas import keys
from schemas.manifest import Window, WorkerState
from storage import control
from storage.memory import MemoryStore
from storage.objects import ObjectStore
from storage.shards import ShardWriter


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def window(limit: int, low: int = 0, ended: tuple[int, ...] = ()) -> Window:
    return Window(version=0, step=0, limit=limit, low=low, ended=ended, closed=False, learner="L")


def board(store: ObjectStore, name: str, clock: Clock, **rollout: object) -> ClaimBoard:
    return ClaimBoard(store, BASE, name, config(rollout={"lease_seconds": 4.0, **rollout}), clock)


def register(store: ObjectStore, name: str) -> WorkerState:
    return control.register_worker(store, BASE, worker=name, host="h", pid=1)


def writer(store: ObjectStore, name: str) -> ShardWriter:
    return ShardWriter(store, BASE, name, METADATA, seal_rows=9, seal_bytes=10**9, seal_seconds=1)


def outwait(board: ClaimBoard, clock: Clock, window: Window) -> None:
    """Let one lease pass under the board's eyes."""
    for _ in range(6):
        board.watch(window, set())
        clock.now += 1.0


def test_the_lowest_open_groups_come_first_and_only_below_the_limit(store: MemoryStore, clock: Clock) -> None:
    mine = board(store, "a", clock)
    view = window(6, low=2, ended=(3,))
    assert [mine.next(view) for _ in range(4)] == [
        Assignment(2, 0, (0, 1)),
        Assignment(4, 0, (0, 1)),
        Assignment(5, 0, (0, 1)),
        None,
    ]


def test_racing_workers_never_share_a_group(store: MemoryStore, clock: Clock) -> None:
    def all_of(name: str) -> list[int]:
        mine = board(store, name, clock)
        found = []
        while (assignment := mine.next(window(60))) is not None:
            found.append(assignment.group)
        return found

    with ThreadPoolExecutor(4) as pool:
        claimed = [g for groups in pool.map(all_of, "abcd") for g in groups]
    assert sorted(claimed) == list(range(60))


def test_a_dead_workers_group_is_taken_over_without_what_it_sealed(store: MemoryStore, clock: Clock) -> None:
    register(store, "dead")
    dead = board(store, "dead", clock)
    assert dead.next(window(1)) == Assignment(0, 0, (0, 1))
    sealing = writer(store, "dead")
    sealing.add(trajectory(0, 1, worker="dead"))
    sealing.add(trajectory(0, 0, worker="dead", status="flooded"))
    sealing.seal()
    register(store, "heir")
    heir = board(store, "heir", clock)
    assert heir.next(window(1)) is None
    outwait(heir, clock, window(1))
    assert heir.next(window(1)) == Assignment(0, 3, (0,))
    claim, _ = control.read_claim(store, BASE, 0) or pytest.fail("no claim")
    assert (claim.owner, claim.owners, claim.takeovers) == ("heir", ("dead", "heir"), 1)
    assert heir.next(window(1)) is None


def test_a_sample_that_failed_its_last_attempt_is_settled_and_an_unreadable_shard_settles_nothing(
    store: MemoryStore, clock: Clock
) -> None:
    register(store, "dead")
    board(store, "dead", clock).next(window(1))
    store.create(keys.shard(BASE, "dead", 0), b"not a shard")
    sealing = writer(store, "dead")
    sealing.next_seq = 1
    sealing.add(trajectory(0, 0, attempt=2, worker="dead", status="flooded"))
    sealing.seal()
    heir = board(store, "heir", clock)
    heir.next(window(1))
    outwait(heir, clock, window(1))
    assert heir.next(window(1)) == Assignment(0, 3, (1,))


def test_a_living_owner_keeps_its_group_and_one_that_left_does_not(store: MemoryStore, clock: Clock) -> None:
    state = register(store, "alive")
    board(store, "alive", clock).next(window(1))
    other = board(store, "other", clock)
    other.next(window(1))
    for beat in range(10):
        control.beat(store, BASE, state.model_copy(update={"beat": beat + 1}))
        other.watch(window(1), set())
        clock.now += 1.0
    assert other.next(window(1)) is None
    control.beat(store, BASE, state.model_copy(update={"beat": 99, "state": "left"}))
    other.watch(window(1), set())
    assert other.next(window(1)) == Assignment(0, 3, (0, 1))


def test_only_one_of_two_heirs_gets_the_group(store: MemoryStore, clock: Clock) -> None:
    register(store, "dead")
    board(store, "dead", clock).next(window(1))
    heirs = [board(store, name, clock) for name in ("x", "y")]
    for heir in heirs:
        heir.next(window(1))
    for _ in range(6):
        for heir in heirs:
            heir.watch(window(1), set())
        clock.now += 1.0
    assert [h.next(window(1)) for h in heirs] == [Assignment(0, 3, (0, 1)), None]


def test_past_the_takeover_limit_nobody_takes_a_group(store: MemoryStore, clock: Clock) -> None:
    register(store, "dead")
    board(store, "dead", clock).next(window(1))
    heir = board(store, "heir", clock, max_takeovers=1)
    heir.next(window(1))
    outwait(heir, clock, window(1))
    assert heir.next(window(1)) is not None
    register(store, "heir")
    last = board(store, "last", clock, max_takeovers=1)
    last.next(window(1))
    outwait(last, clock, window(1))
    assert last.next(window(1)) is None


def test_a_living_owner_plays_again_what_it_cannot_read_back(store: MemoryStore, clock: Clock) -> None:
    owner = board(store, "owner", clock, seal_seconds=1.0)
    assert owner.next(window(1)) == Assignment(0, 0, (0, 1))
    sealing = writer(store, "owner")
    sealing.add(trajectory(0, 1, worker="owner"))
    sealing.seal()
    store.create(keys.shard(BASE, "owner", 1), b"cut short")
    for _ in range(20):
        owner.watch(window(1), {0})
        clock.now += 1.0
    assert owner.next(window(1)) is None
    outwait(owner, clock, window(1))
    assert owner.next(window(1)) == Assignment(0, 3, (0,))
    outwait(owner, clock, window(1))
    assert owner.next(window(1)) == Assignment(0, 6, (0,))


def test_a_living_owner_leaves_alone_what_it_can_read_back(store: MemoryStore, clock: Clock) -> None:
    owner = board(store, "owner", clock, seal_seconds=1.0)
    assert [owner.next(window(2)) for _ in range(2)] == [Assignment(g, 0, (0, 1)) for g in range(2)]
    sealing = writer(store, "owner")
    for sample in range(2):
        sealing.add(trajectory(0, sample, worker="owner"))
    sealing.seal()
    outwait(owner, clock, window(2))
    assert owner.next(window(2)) == Assignment(1, 3, (0, 1))
    assert owner.next(window(2)) is None
