"""Ledger against log: the promises of one RL stage, each as a function from what was read to what contradicts it.

Nothing here reads the store, so every check can be tried on a hand-made chain and log.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from schemas import keys, seeds
from schemas.config import Run
from schemas.ledger import Disposition, Kind, LedgerRow
from schemas.rl import RL
from storage.audit_chain import Chain, Link
from storage.audit_log import Fact, Log, Place

_WHOLE_GROUP = (Disposition.TRAINED, Disposition.STALE, Disposition.ZERO_ADVANTAGE, Disposition.INCOMPLETE)
"""Dispositions that a row has because its group ends in the same record."""


def ledger_rows(chain: Chain, log: Log) -> Iterator[str]:
    """Every ledger row names a row that is in a shard, with the same digest and identity, and no row is named twice."""
    seen: dict[Place, Link] = {}
    absent: Counter[tuple[str, int]] = Counter()
    for link, row in chain.rows(Kind.TRAJECTORY):
        place = row_place(row)
        if place in seen:
            yield f"{row.trajectory} ({_at(log, place)}) has two dispositions: in {seen[place].name} and in {link.name}"
        seen[place] = link
        fact = log.rows.get(place)
        if fact is None and place[:2] in log.shards and place[:2] not in log.unreadable:
            yield f"{link.name} names {_at(log, place)}, which the shard does not have"
        elif fact is None:
            absent[place[:2]] += 1
        else:
            yield from _same(link, row, fact, log)
    for (worker, seq), count in sorted(absent.items()):
        why = log.unreadable.get((worker, seq), "missing")
        yield f"{keys.shard(log.base, worker, seq)}, of which the ledger names {count} rows, is {why}"


def row_place(row: LedgerRow) -> Place:
    """Where a ledger row's trajectory stands; a place that can't exist if it does not say."""
    return (row.worker or "", -1 if row.seq is None else row.seq, -1 if row.row is None else row.row)


def _same(link: Link, row: LedgerRow, fact: Fact, log: Log) -> Iterator[str]:
    """A ledger row and the stored row that it names are one."""
    where = f"{link.name}: {row.trajectory} ({_at(log, fact.place)})"
    if row.row_digest != fact.digest:
        yield f"{where} has another digest in its shard than in the ledger: the shard or the record was changed"
        return
    named = (row.trajectory, row.group, row.sample, row.attempt, row.task_id)
    if named != (fact.id, fact.group, fact.sample, fact.attempt, fact.task_id):
        yield f"{where} is called otherwise in the ledger: the record was changed"


def log_rows(chain: Chain, log: Log, run: str, group_size: int, seed: int) -> Iterator[str]:
    """Every stored row is of this run, stage (by its seed) and its own worker, and no trajectory is stored twice."""
    places: dict[str, Place] = {}
    for fact in log.rows.values():
        at = _at(log, fact.place)
        if fact.id in places:
            yield f"the trajectory {fact.id} stands twice: at {_at(log, places[fact.id])} and at {at}"
        places.setdefault(fact.id, fact.place)
        if (fact.run, fact.worker) != (run, fact.place[0]):
            yield f"{at} says that it is of worker {fact.worker} in run {fact.run}"
        if fact.id != f"{fact.group}-{fact.sample}-{fact.attempt}" or not 0 <= fact.sample < group_size:
            yield f"{at} has the impossible id {fact.id}"
        elif fact.seed != seeds.request(seed, fact.group, fact.sample, fact.attempt, 0):
            yield f"{at} ({fact.id}) was sampled by another seed than the stage's: it was not made for training here"
    if chain.closed:
        yield from (f"{w} has no end marker though the ledger is closed" for w in log.endless)


def open_rows(chain: Chain, log: Log) -> list[Fact]:
    """Stored rows without a disposition."""
    named = {row_place(row) for _, row in chain.rows(Kind.TRAJECTORY)}
    return [fact for place, fact in log.rows.items() if place not in named]


def unaccounted(chain: Chain, log: Log) -> Iterator[str]:
    """In a closed run every row has its disposition and every unreadable shard its entry."""
    if chain.closed:
        for fact in open_rows(chain, log):
            yield f"{fact.id} ({_at(log, fact.place)}) has no disposition though the ledger is closed"


def shards(chain: Chain, log: Log) -> Iterator[str]:
    """The ledger's entries of unreadable shards are those that can't be read."""
    recorded = Counter((row.worker or "", -1 if row.seq is None else row.seq) for _, row in chain.rows(Kind.SHARD))
    for (worker, seq), count in recorded.items():
        key = keys.shard(log.base, worker, seq)
        if count > 1:
            yield f"{key} is recorded as unreadable {count} times"
        if (worker, seq) not in log.shards:
            yield f"{key} is recorded as unreadable and is not there"
        elif (worker, seq) not in log.unreadable:
            yield f"{key} is recorded as unreadable and can be read: its rows have no disposition"
    if chain.closed:
        for (worker, seq), reason in log.unreadable.items():
            if (worker, seq) not in recorded:
                yield f"{keys.shard(log.base, worker, seq)} can't be read ({reason}) and the ledger does not say so"


def trained_twice(chain: Chain) -> dict[tuple[int | None, int | None], list[Link]]:
    """(group, sample) → the records that trained it, where there is more than one training of it."""
    trained = defaultdict(list)
    for link, row in chain.rows(Kind.TRAJECTORY):
        if row.disposition == Disposition.TRAINED:
            trained[row.group, row.sample].append(link)
    return {sample: links for sample, links in trained.items() if len(links) > 1}


def once(chain: Chain) -> Iterator[str]:
    """No sample of a group is trained twice."""
    for (group, sample), links in trained_twice(chain).items():
        names = ", ".join(link.name for link in links)
        yield f"sample {sample} of group {group} was trained {len(links)} times: in {names}"


def staleness(chain: Chain, log: Log, rl: RL) -> Iterator[str]:
    """The recorded staleness is what the stored versions give, and within the bound."""
    for link, row in chain.rows(Kind.TRAJECTORY):
        fact = log.rows.get(row_place(row))
        if row.disposition != Disposition.TRAINED or fact is None:
            continue
        found = rl.staleness(link.record.metadata.version - fact.oldest)
        if (row.staleness, row.in_flight) != (found, (fact.newest - fact.oldest) * rl.updates):
            yield f"{link.name}: {fact.id} has staleness {found} by its shard and {row.staleness} in the ledger"
        if not rl.staleness(0) <= found <= rl.max_staleness or fact.oldest < 0:
            yield f"{link.name}: {fact.id} was trained at staleness {found}; the bound is {rl.max_staleness}"


def max_staleness(chain: Chain, log: Log, rl: RL) -> int:
    """The highest staleness of a trained row, recomputed from the shards where they can be read."""
    found = [
        rl.staleness(link.record.metadata.version - log.rows[row_place(row)].oldest)
        for link, row in chain.rows(Kind.TRAJECTORY)
        if row.disposition == Disposition.TRAINED and row_place(row) in log.rows
    ]
    return max(found, default=0)


def batches(chain: Chain, config: Run) -> Iterator[str]:
    """A step's trained rows lie at positions 0, 1, … by (group, sample), from no more groups than a batch has."""
    for link in chain.links:
        trained = link.record.trained()
        if [row.position for row in trained] != list(range(len(trained))):
            yield f"{link.name}: the batch positions of its {len(trained)} trained rows are not 0 to {len(trained) - 1}"
        order = [(row.group or 0, row.sample or 0) for row in trained]
        if order != sorted(order):
            yield f"{link.name}: its batch is not ordered by group and sample"
        groups = Counter(row.group for row in trained)
        if len(groups) > config.rl.groups_per_batch:
            yield f"{link.name} trained {len(groups)} groups; a batch has {config.rl.groups_per_batch}"
        few = (g for g, n in groups.items() if n < config.rl.loss.least)
        yield from (f"{link.name} trained group {g} with a single sample" for g in few)


def groups(chain: Chain) -> Iterator[str]:
    """A group ends once, and rows that share its end stand in the record that ends it."""
    ended: dict[int | None, Link] = {}
    for link in chain.links:
        ends = {row.group: row.disposition for row in link.record.rows if row.kind == Kind.GROUP}
        for group in link.record.ended_groups():
            if group in ended:
                yield f"group {group} ended twice: in {ended[group].name} and in {link.name}"
            ended[group] = link
        yield from _ends(link, ends)


def _ends(link: Link, ends: Mapping[int | None, str | None]) -> Iterator[str]:
    rows = [row for row in link.record.rows if row.kind == Kind.TRAJECTORY]
    for row in rows:
        if row.disposition not in {str(d) for d in Disposition}:
            yield f"{link.name}: {row.trajectory} has the unknown disposition `{row.disposition}`"
        elif row.disposition in _WHOLE_GROUP and ends.get(row.group) != row.disposition:
            yield f"{link.name}: {row.trajectory} is {row.disposition} but its group {row.group} does not end so there"
    trained = {row.group for row in rows if row.disposition == Disposition.TRAINED}
    for group, disposition in ends.items():
        if disposition == Disposition.TRAINED and group not in trained:
            yield f"{link.name}: group {group} ends as trained without a trained row"


def _at(log: Log, place: Place) -> str:
    worker, seq, row = place
    return f"row {row} of {keys.shard(log.base, worker, seq)}"
