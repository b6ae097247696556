"""From a selection to the ledger record of a step: every row that ends here, with its one disposition."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.ledger import Disposition, Kind, LedgerRow
from schemas.rl import RL
from trainer.advantages import Advantage, Rewards
from trainer.assembler import GroupAssembler, Row
from trainer.shaping import Shape
from trainer.staleness import Selection


@dataclass(frozen=True)
class StepRows:
    """The batch of a step and the rows of its record."""

    batch: tuple[Row, ...]
    """Trained rows by (group, sample), never by arrival."""
    advantages: tuple[float, ...]
    ledger: tuple[LedgerRow, ...]


def step_rows(
    selection: Selection,
    assembler: GroupAssembler,
    version: int,
    rl: RL,
    shape: Shape,
    advantage: Advantage,
    aside: Sequence[tuple[Row, Disposition, str]],
    unreadable: Iterable[tuple[str, int, str]],
) -> StepRows:
    """Everything that ends at the step whose version is `version`."""
    groups = [assembler.get(number) for number in selection.train]
    survivors = [group.survivors() for group in groups]
    batch = tuple(row for rows in survivors for row in rows)
    advantages = _advantages(shape(batch), [len(rows) for rows in survivors], advantage)
    rest: list[LedgerRow] = []
    for number, group in zip(selection.train, groups, strict=True):
        rest += [ended(r, Disposition.FAILED, r.trajectory.detail) for r in group.failures]
        rest.append(LedgerRow(Kind.GROUP, group=number, disposition=Disposition.TRAINED))
    for number, (disposition, reason) in selection.settle.items():
        rest += _settled(assembler, number, disposition, reason)
    rest += [ended(row, disposition, reason) for row, disposition, reason in aside]
    rest += unreadable_rows(unreadable)
    trained = [_trained(r, i, a, version, rl) for i, (r, a) in enumerate(zip(batch, advantages, strict=True))]
    return StepRows(batch, advantages, (*trained, *rest))


def _advantages(rewards: Rewards, sizes: list[int], advantage: Advantage) -> tuple[float, ...]:
    """Of every row, group by group, in the float32 that the ledger keeps."""
    parts = np.split(rewards, np.cumsum(sizes)[:-1]) if sizes else []
    return tuple(float(np.float32(a)) for part in parts for a in advantage(part))


def _settled(assembler: GroupAssembler, number: int, disposition: Disposition, reason: str) -> list[LedgerRow]:
    group = assembler.get(number)
    rows = [ended(r, disposition, reason) for r in group.survivors()]
    rows += [ended(r, Disposition.FAILED, r.trajectory.detail) for r in group.failures]
    return [*rows, LedgerRow(Kind.GROUP, group=number, disposition=disposition, reason=reason)]


def ended(row: Row, disposition: Disposition, reason: str) -> LedgerRow:
    """The ledger row of a trajectory that ends without being trained."""
    return LedgerRow(**_identity(row), disposition=disposition, reason=reason or None)


def unreadable_rows(shards: Iterable[tuple[str, int, str]]) -> list[LedgerRow]:
    """One entry for each shard that can't be read: worker, number, reason."""
    return [LedgerRow(Kind.SHARD, worker=worker, seq=seq, reason=reason) for worker, seq, reason in shards]


def _trained(row: Row, position: int, advantage: float, version: int, rl: RL) -> LedgerRow:
    t = row.trajectory
    return LedgerRow(
        **_identity(row),
        disposition=Disposition.TRAINED,
        position=position,
        staleness=rl.staleness(version - t.oldest_version),
        in_flight=(t.newest_version - t.oldest_version) * rl.updates,
        advantage=advantage,
        weight=1.0,
    )


def _identity(row: Row) -> dict[str, Any]:
    t = row.trajectory
    worker, seq, place = row.place
    return {
        "kind": Kind.TRAJECTORY,
        "group": t.group,
        "sample": t.sample,
        "attempt": t.attempt,
        "trajectory": t.id,
        "task_id": t.task_id,
        "worker": worker,
        "seq": seq,
        "row": place,
        "row_digest": row.digest,
    }
