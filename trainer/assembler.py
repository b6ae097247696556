"""Rows of the log, put together to groups across shards and workers.

The first successful row of a sample wins. A group is whole when each of its samples has a successful row or has failed
its last attempt; it can then be trained if at least two samples succeeded.
"""

from dataclasses import dataclass, field

from schemas.ledger import Disposition
from schemas.trajectory import Trajectory
from trainer.progress import Place


@dataclass(frozen=True)
class Row:
    """A trajectory and where it stands."""

    place: Place
    trajectory: Trajectory
    digest: str

    @property
    def order(self) -> tuple[int, int, int]:
        return (self.trajectory.group, self.trajectory.sample, self.trajectory.attempt)


@dataclass
class Group:
    """What has arrived of one group."""

    samples: dict[int, Row] = field(default_factory=dict)
    """Sample → its first successful row."""
    failures: list[Row] = field(default_factory=list)

    def whole(self, size: int, attempts: int) -> bool:
        """Whether nothing more can come: every sample succeeded or failed its last attempt.

        Each owner of a group numbers its attempts from takeovers x attempts, so that no id is used twice.
        """
        dead = {r.trajectory.sample for r in self.failures if r.trajectory.attempt % attempts == attempts - 1}
        return len(self.samples.keys() | dead) >= size

    def survivors(self) -> list[Row]:
        """The successful rows in the order of their samples."""
        return [self.samples[s] for s in sorted(self.samples)]

    def oldest_version(self) -> int:
        """The oldest policy version that sampled any of it."""
        return min(r.trajectory.oldest_version for r in self.samples.values())


class GroupAssembler:
    """Collects rows by group; rows that come too late or twice are set aside with their disposition."""

    def __init__(self, group_size: int, attempts: int) -> None:
        self._size, self._attempts = group_size, attempts
        self._groups: dict[int, Group] = {}
        self._answered: dict[int, set[int]] = {}
        self.aside: list[tuple[Row, Disposition, str]] = []
        """Rows that end at the next step without having been part of a batch, each with the reason."""

    def add(self, row: Row, *, ended: bool) -> None:
        """Take in a row; `ended` says that the ledger has ended its group."""
        t = row.trajectory
        if ended:
            late = Disposition.DUPLICATE if self._has_row(t) else Disposition.SUPERSEDED
            self.aside.append((row, Disposition.FAILED if t.failed else late, "the group had ended"))
        elif t.failed:
            self._groups.setdefault(t.group, Group()).failures.append(row)
        elif t.sample in self._group(t.group).samples:
            self.aside.append((row, Disposition.DUPLICATE, "the sample had a row"))
        else:
            self._group(t.group).samples[t.sample] = row

    def _has_row(self, trajectory: Trajectory) -> bool:
        """Whether the ended group had a row of this sample. A group that ended before a restart counts as having it."""
        answered = self._answered.get(trajectory.group)
        return answered is None or trajectory.sample in answered

    def _group(self, number: int) -> Group:
        return self._groups.setdefault(number, Group())

    def get(self, number: int) -> Group:
        """What has arrived of a group (nothing is a group without rows)."""
        return self._groups.get(number) or Group()

    def whole(self, number: int) -> bool:
        return self.get(number).whole(self._size, self._attempts)

    def end(self, numbers: list[int]) -> None:
        """Forget groups that the ledger has ended, remembering which samples had rows."""
        for number in numbers:
            group = self._groups.pop(number, None) or Group()
            self._answered[number] = set(group.samples)

    def take_aside(self) -> list[tuple[Row, Disposition, str]]:
        """The rows set aside since the last call."""
        taken, self.aside = self.aside, []
        return taken

    def rest(self) -> list[Row]:
        """Every row that is still here, for the closing record."""
        return [r for g in self._groups.values() for r in (*g.survivors(), *g.failures)]
