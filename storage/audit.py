"""The audit: the ledger replayed against the log, and both against the manifests that name them.

`verify` asks whether the store contradicts a promise. What trained a checkpoint is in `audit_lineage`, one trajectory's
life in `audit_life`.
A live run may be audited: what stands in the log and has no disposition yet is `pending` there.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from schemas import keys
from schemas.config import Run
from schemas.errors import RequestError
from schemas.expired import Expired
from schemas.manifest import CheckpointManifest, PolicyManifest, RLManifest, RLSpec
from storage import audit_checks as checks
from storage.audit_chain import Chain, dispositions, read_chain
from storage.audit_life import trajectory
from storage.audit_lineage import checkpoint
from storage.audit_log import Log, read_log
from storage.audit_runs import read_spec, stages
from storage.audit_taken import taken_violations
from storage.documents import read_document
from storage.objects import ObjectStore

__all__ = ["StageVerification", "Verification", "checkpoint", "trajectory", "verify"]

_SHOWN = 20


@dataclass(frozen=True)
class StageVerification:
    """What an audit found in one RL stage."""

    key: str
    closed: bool
    records: int
    steps: int
    head: str
    workers: int
    shards: int
    unreadable: int
    generated: int
    """Rows in readable shards."""
    dispositions: dict[str, int]
    """Trajectories by their end."""
    trained_twice: int
    """Trainings of a (group, sample) beyond its first."""
    unaccounted: int
    """Rows without a disposition though the ledger is closed."""
    pending: int
    """Rows without a disposition yet, on a live run."""
    max_staleness: int
    bound: int
    checked_rows: int
    """Rows whose digest was computed anew and is the ledger's."""
    policies: int
    checkpoints: int
    expired: int
    """Checkpoints whose files `headrace gc` has removed."""
    violations: tuple[str, ...]
    """Each contradiction in one sentence, naming the object."""


@dataclass(frozen=True)
class Verification:
    """What an audit found in a run: sums over its RL stages."""

    run: str
    stages: tuple[StageVerification, ...]
    taken: tuple[str, ...] = ()
    """Contradictions in what its warm-ups took from the logs of other runs."""

    @property
    def violations(self) -> tuple[str, ...]:
        return (*(v for stage in self.stages for v in stage.violations), *self.taken)

    @property
    def ok(self) -> bool:
        return not self.violations

    def total(self, name: str) -> int:
        """The sum of one count over the stages."""
        return sum(getattr(stage, name) for stage in self.stages)

    def to_json(self) -> dict[str, Any]:
        """What `audit verify --json` prints; of the violations the first ones."""
        counts = ("generated", "trained_twice", "unaccounted", "pending", "checked_rows", "expired")
        ends = sum((Counter(stage.dispositions) for stage in self.stages), Counter[str]())
        return {
            "ok": self.ok,
            "run": self.run,
            **{name: self.total(name) for name in counts},
            "dispositions": dict(ends),
            "max_staleness": max((stage.max_staleness for stage in self.stages), default=0),
            "violation_count": len(self.violations),
            "violations": list(self.violations[:_SHOWN]),
            "stages": [{k: v for k, v in asdict(s).items() if k != "violations"} for s in self.stages],
        }

    def sentence(self) -> str:
        """The first violation, and how many there are: the words of an AuditViolation."""
        count = len(self.violations)
        more = f" (and {count - 1} more; `--json` lists them)" if count > 1 else ""
        return (
            f"the audit of run {self.run} failed: {self.violations[0]}{more}" if count else f"run {self.run} is sound"
        )


def verify(store: ObjectStore, run: str) -> Verification:
    """Audit every RL stage of a run, and what its warm-ups took from logs. RequestError if there is no such run or it
    has no RL stage."""
    found = tuple(_stage(store, run, base) for base in stages(store, run))
    return Verification(run, found, tuple(taken_violations(store, run)))


def _stage(store: ObjectStore, run: str, base: str) -> StageVerification:
    """Manifests are read before the ledger and the ledger before the log: each names only what was there before it."""
    spec = read_spec(store, base)
    config = Run.model_validate(spec.config)
    manifests = _read_manifests(store, base)
    chain = read_chain(store, base, spec)
    log = read_log(store, base)
    waiting = len(checks.open_rows(chain, log))
    return StageVerification(
        key=spec.key,
        closed=chain.closed,
        records=len(chain.links),
        steps=chain.steps,
        head=chain.head,
        workers=len(log.workers),
        shards=len(log.shards),
        unreadable=len(log.unreadable),
        generated=len(log.rows),
        dispositions=dispositions(chain.links),
        trained_twice=sum(len(links) - 1 for links in checks.trained_twice(chain).values()),
        unaccounted=waiting if chain.closed else 0,
        pending=0 if chain.closed else waiting,
        max_staleness=checks.max_staleness(chain, log, config.rl),
        bound=config.rl.max_staleness,
        checked_rows=_checked(chain, log),
        policies=sum(isinstance(m, PolicyManifest) for _, m in manifests.found),
        checkpoints=sum(isinstance(m, CheckpointManifest) for _, m in manifests.found),
        expired=sum(isinstance(m, Expired) and m.state != "kept" for _, m in manifests.found),
        violations=(
            *chain.violations,
            *log.violations,
            *manifests.violations,
            *checks.ledger_rows(chain, log),
            *checks.log_rows(chain, log, run, config.rl.group_size, spec.seed),
            *checks.unaccounted(chain, log),
            *checks.shards(chain, log),
            *checks.once(chain),
            *checks.staleness(chain, log, config.rl),
            *checks.batches(chain, config),
            *checks.groups(chain),
            *_against_manifests(chain, manifests, spec),
        ),
    )


def _checked(chain: Chain, log: Log) -> int:
    named = {checks.row_place(row): row.row_digest for link in chain.links for row in link.record.rows}
    return sum(named.get(place) == fact.digest for place, fact in log.rows.items())


_Manifest = PolicyManifest | CheckpointManifest | RLManifest | Expired


_NAMED: tuple[tuple[str, str, type[_Manifest]], ...] = (
    ("checkpoints", "expired", Expired),
    ("checkpoints", "manifest", CheckpointManifest),
    ("policies", "manifest", PolicyManifest),
)


@dataclass(frozen=True)
class _Manifests:
    found: tuple[tuple[str, _Manifest], ...]
    violations: tuple[str, ...]


def _read_manifests(store: ObjectStore, base: str) -> _Manifests:
    """Every manifest that is there, read in the reverse of the order in which they are written."""
    wanted: list[tuple[str, type[_Manifest]]] = [(keys.rl_manifest(base), RLManifest)]
    for folder, name, kind in _NAMED:
        wanted += [(k, kind) for k in store.list(f"{base}/{folder}/") if k.endswith(f"/{name}.json")]
    found, violations = [], []
    for key, kind in wanted:
        try:
            document = read_document(store, kind, key)
            if document is not None:
                found.append((key, document))
        except RequestError as error:
            violations.append(str(error))
    return _Manifests(tuple(found), tuple(violations))


def _against_manifests(chain: Chain, manifests: _Manifests, spec: RLSpec) -> Iterator[str]:
    """Every manifest names a ledger head that is in the chain, at the step that it says."""
    policies = {m.version: m.weights.sha256 for _, m in manifests.found if isinstance(m, PolicyManifest)}
    checkpoints = {key: m for key, m in manifests.found if isinstance(m, CheckpointManifest)}
    known = chain.by_digest()
    for key, manifest in manifests.found:
        if isinstance(manifest, Expired):
            beside = key.removesuffix("expired.json") + "manifest.json"
            if not _is_of(manifest, checkpoints.get(beside)):
                yield f"{key} speaks of a checkpoint that has no such manifest: one of them was changed or removed"
            continue
        link = known.get(manifest.ledger_head)
        if link is None and manifest.ledger_head:
            yield f"{key} names a ledger head that is not in the ledger: records were changed or removed after it"
            continue
        index, steps = (link.index + 1, link.steps) if link else (0, 0)
        if manifest.version != steps:
            yield f"{key} says version {manifest.version} and names the ledger head of version {steps}"
        if isinstance(manifest, CheckpointManifest):
            if manifest.ledger_index != index or manifest.initial.sha256 != spec.initial.sha256:
                yield f"{key} does not fit the ledger: it was changed"
            if policies.get(manifest.version) != manifest.policy.sha256:
                yield f"{key} names other weights than the policy {manifest.version} that was published"
        if not isinstance(manifest, PolicyManifest) and manifest.dispositions != dispositions(chain.until(index)):
            yield f"{key} counts other dispositions than the ledger up to it"


def _is_of(expired: Expired, manifest: CheckpointManifest | None) -> bool:
    """Whether a tombstone has the digests of the checkpoint that it stands beside."""
    if manifest is None:
        return False
    named = (expired.params_sha256, expired.policy, expired.ledger_head)
    return named == (manifest.params_sha256, manifest.policy, manifest.ledger_head)
