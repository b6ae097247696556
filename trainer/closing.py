"""The end of a run: the workers leave, every log gets its end marker, and what is left over is accounted for."""

from collections.abc import Callable

from schemas.ledger import Disposition, Kind, LedgerRow
from trainer.assembler import GroupAssembler, Row
from trainer.candidates import ClaimWatch
from trainer.progress import Progress
from trainer.record import ended, unreadable_rows
from trainer.tail import ShardTail


def workers_left(tail: ShardTail, watch: ClaimWatch, deliver: Callable[[Row], None]) -> bool:
    """Whether no worker beats any more; what they have sealed until now goes to `deliver`."""
    tail.poll(deliver)
    if all(worker.state.state == "left" for worker in tail.refresh()):
        return True
    watch.refresh([], tail)
    return not watch.anyone_alive()


def end_logs(tail: ShardTail, deliver: Callable[[Row], None]) -> None:
    """Read every log up to its end marker, and put one where there is none: nothing can follow it."""
    while True:
        tail.poll(deliver)
        if tail.mark_ends():
            return


def closing_rows(progress: Progress, assembler: GroupAssembler, tail: ShardTail) -> tuple[LedgerRow, ...]:
    """The rows of the closing record: whatever has no disposition yet."""
    rows = [_unused(row) for row in assembler.rest()]
    rows += [ended(row, disposition, reason) for row, disposition, reason in assembler.take_aside()]
    rows += unreadable_rows(tail.take_unreadable())
    rows += [_open_group(group) for group in progress.open_groups()]
    return tuple(rows)


def _unused(row: Row) -> LedgerRow:
    if row.trajectory.failed:
        return ended(row, Disposition.FAILED, row.trajectory.detail)
    return ended(row, Disposition.UNUSED, "the run ended")


def _open_group(group: int) -> LedgerRow:
    return LedgerRow(Kind.GROUP, group=group, disposition=Disposition.UNUSED, reason="the run ended")
