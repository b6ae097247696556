"""The ledger as an audit sees it: every record in order, and every place where the hash chain does not hold.

Unlike recovery, which stops at the first damaged record, an audit reads on and names each of them.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas import keys
from schemas.config import Run
from schemas.errors import AuditViolation
from schemas.ledger import Disposition, Kind, LedgerRow, Record, decode, record_digest
from schemas.manifest import RLSpec
from schemas.rl import RL
from storage.objects import ObjectStore, find


@dataclass(frozen=True)
class Link:
    """One record in its place."""

    index: int
    record: Record
    digest: str
    steps: int
    """Step records up to and including this one: the policy version after it."""

    @property
    def name(self) -> str:
        """What a person calls it."""
        return "the closing record" if self.record.metadata.kind == "close" else f"step {self.record.metadata.step}"


@dataclass
class Chain:
    """The ledger of one RL stage, as far as it can be read."""

    base: str
    links: list[Link] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    @property
    def closed(self) -> bool:
        """Whether a closing record stands at the head: no row can come after it."""
        return bool(self.links) and self.links[-1].record.metadata.kind == "close"

    @property
    def head(self) -> str:
        return self.links[-1].digest if self.links else ""

    @property
    def steps(self) -> int:
        return self.links[-1].steps if self.links else 0

    def rows(self, kind: Kind) -> Iterator[tuple[Link, LedgerRow]]:
        """Every ledger row of one kind with the record that holds it."""
        for link in self.links:
            yield from ((link, row) for row in link.record.rows if row.kind == kind)

    def by_digest(self) -> dict[str, Link]:
        """The records by the digest that manifests and the next record name."""
        return {link.digest: link for link in self.links}

    def back_from(self, head: str) -> list[Link]:
        """The records from the first to the one with this digest, found by walking the hash chain backwards.

        Raises AuditViolation where the chain breaks.
        """
        known, found = self.by_digest(), []
        while head:
            if head not in known:
                raise AuditViolation(f"the ledger of {self.base} has no record {head[:12]}: it was changed or removed")
            found.append(known[head])
            head = known[head].record.metadata.previous
        return found[::-1]

    def until(self, index: int) -> list[Link]:
        """The records below a ledger index."""
        return [link for link in self.links if link.index < index]


def dispositions(links: list[Link]) -> dict[str, int]:
    """Trajectories by disposition in these records, in the order of `Disposition`."""
    rows = (row for link in links for row in link.record.rows if row.kind == Kind.TRAJECTORY)
    count = Counter(str(row.disposition) for row in rows)
    known = {str(d): count.pop(str(d)) for d in Disposition if str(d) in count}
    return known | dict(count)


def read_chain(store: ObjectStore, base: str, spec: RLSpec) -> Chain:
    """Every record that the store has, each checked against the one before it."""
    chain, previous, expected = Chain(base), "", 0
    rl = Run.model_validate(spec.config).rl
    for index, key in _records(store, base, chain):
        if index != expected:
            chain.violations.append(
                f"{keys.ledger(base, expected)} is missing though {key} is there: the ledger has a gap"
            )
        stored = find(store, key)
        if stored is None:
            chain.violations.append(f"{key} was removed while it was audited")
            continue
        _link(chain, index, key, stored.data, previous if index == expected else None, spec, rl)
        previous, expected = record_digest(stored.data), index + 1
    return chain


def _records(store: ObjectStore, base: str, chain: Chain) -> Iterator[tuple[int, str]]:
    for key in store.list(f"{base}/ledger/"):
        match = re.fullmatch(r"(\d{8})\.arrow", key.removeprefix(f"{base}/ledger/"))
        if match:
            yield int(match[1]), key
        else:
            chain.violations.append(f"{key} does not belong in a ledger")


def _link(chain: Chain, index: int, key: str, data: bytes, previous: str | None, spec: RLSpec, rl: RL) -> None:
    try:
        record = decode(data)
    except ValueError as error:
        chain.violations.append(f"{key} {error}")
        return
    link = Link(index, record, record_digest(data), chain.steps + (record.metadata.kind == "step"))
    chain.violations += _complaints(link, key, chain.steps, previous, spec)
    chain.violations += _updates(link, key, rl)
    chain.links.append(link)


def _complaints(link: Link, key: str, steps: int, previous: str | None, spec: RLSpec) -> Iterator[str]:
    """What is wrong with a record's metadata; `steps` is the number of step records before it."""
    metadata = link.record.metadata
    if previous is not None and metadata.previous != previous:
        yield f"{key} does not follow the record before it: the hash chain is broken, one of the two was changed"
    if metadata.kind not in ("step", "close"):
        yield f"{key} is of the unknown kind `{metadata.kind}`"
    if metadata.step != steps:
        yield f"{key} says step {metadata.step} where step {steps} follows"
    if metadata.version != metadata.step:
        yield f"{key} says policy version {metadata.version} before step {metadata.step}: they are equal"
    if metadata.parent != spec.initial.sha256:
        yield f"{key} names other weights for version 0 than {keys.spec(key.rsplit('/ledger/', 1)[0])}"


def _updates(link: Link, key: str, rl: RL) -> Iterator[str]:
    """A record makes as many updates as its trained groups ask for; the closing one makes none."""
    metadata, trained = link.record.metadata, link.record.trained()
    wanted = rl.updates_on(len({row.group for row in trained}))
    if (metadata.kind == "close" and trained) or metadata.updates != wanted:
        yield f"{key} says {metadata.updates} updates and has {len(trained)} trained rows, which make {wanted} updates"
