"""Finding one's way in the store: runs, their RL stages and checkpoints, and what was promoted."""

from collections import defaultdict
from collections.abc import Iterator

from schemas import keys
from schemas.errors import AuditViolation, RequestError
from schemas.manifest import CheckpointManifest, RLSpec, RunManifest
from schemas.promotion import Channel
from storage.documents import read_document
from storage.objects import ObjectStore


def folders(store: ObjectStore, prefix: str) -> Iterator[str]:
    """Names directly below a prefix that ends in '/', one listing of a single key for each."""
    after = ""
    while found := store.list(prefix, after, 1):
        name = found[0].removeprefix(prefix).split("/")[0]
        yield name
        after = f"{prefix}{name}0"  # '0' is the character after '/': everything below the name is passed over


def stages(store: ObjectStore, run: str) -> list[str]:
    """The folders of a run's RL stages, oldest first. RequestError if there is no such run or no RL stage yet."""
    key = keys.run_manifest(run)
    manifest = read_document(store, RunManifest, key)
    present = [name for name in folders(store, f"{keys.run(run)}/") if name.startswith("rl-")]
    if manifest is None and not present:
        raise RequestError(f"there is no run `{run}` in {store.url}: `headrace status` lists the runs")
    opened = manifest.rl_keys if manifest else ()
    names = list(dict.fromkeys([*(f"rl-{k}" for k in opened if f"rl-{k}" in present), *present]))
    if not names:
        raise RequestError(f"run `{run}` has no RL stage yet")
    return [f"{keys.run(run)}/{name}" for name in names]


def read_spec(store: ObjectStore, base: str) -> RLSpec:
    """What an RL stage was told to do. AuditViolation if it is gone: all else comes after it."""
    key = keys.spec(base)
    spec = read_document(store, RLSpec, key)
    if spec is None:
        raise AuditViolation(f"{key} is missing though {base} has other objects: it was removed")
    if keys.rl(spec.run, spec.key) != base:
        raise AuditViolation(f"{key} speaks of run {spec.run} and key {spec.key}: it belongs elsewhere")
    return spec


def checkpoints(store: ObjectStore, base: str) -> list[CheckpointManifest]:
    """The checkpoints of an RL stage, by step."""
    found = [key for key in store.list(f"{keys.checkpoints(base)}/") if key.endswith("/manifest.json")]
    return [CheckpointManifest.from_bytes(store.get(key).data, key) for key in found]


def find_checkpoint(
    store: ObjectStore, run: str, step: int | None, weights_sha256: str = ""
) -> tuple[str, CheckpointManifest]:
    """The stage's folder and the manifest of RUN@STEP; without a step the newest one of the newest stage that has any.

    `weights_sha256` picks the stage by the policy that the checkpoint published. RequestError names what there is.
    """
    seen: list[int] = []
    for base in reversed(stages(store, run)):
        found = checkpoints(store, base)
        seen += [c.step for c in found]
        fitting = [c for c in found if c.step == step or step is None]
        fitting = [c for c in fitting if c.policy.sha256 == weights_sha256 or not weights_sha256]
        if fitting:
            return base, fitting[-1]
    if weights_sha256 and (step in seen or step is None):
        raise AuditViolation(
            f"the checkpoint {run}@{step} has other weights than {weights_sha256[:12]}, which were used"
        )
    wanted = f"`{run}@{step}`" if step is not None else f"of run `{run}`"
    raise RequestError(f"there is no checkpoint {wanted}: steps with one are {_steps(seen)}")


def _steps(seen: list[int]) -> str:
    return ", ".join(str(s) for s in sorted(set(seen))) or "none so far"


def promotions(store: ObjectStore) -> dict[str, list[str]]:
    """Weights digest → the channels (`name/channel`) that it was promoted to, ever."""
    found: dict[str, list[str]] = defaultdict(list)
    for key in store.list("registry/"):
        channel = Channel.from_bytes(store.get(key).data, key)
        for entry in channel.history:
            found[entry.weights.sha256].append(f"{channel.name}/{channel.channel}")
    return found
