"""The layout of the store: every key is made here, so that the layout can be read in one place.

Sequence numbers, steps and versions are zero-padded to eight digits: they sort as text and never grow a prefix.
"""


def run(name: str) -> str:
    return f"runs/{name}"


def run_manifest(name: str) -> str:
    return f"runs/{name}/run.json"


def run_lease(name: str) -> str:
    return f"runs/{name}/lease.json"


def schedule_lease(name: str) -> str:
    return f"schedules/{name}/lease.json"


def stage(name: str, key: str) -> str:
    return f"stages/{name}-{key}"


def stage_manifest(name: str, key: str) -> str:
    return f"stages/{name}-{key}/manifest.json"


def data(sha256: str, suffix: str) -> str:
    """A user's data file, kept under its own digest. `suffix` is `jsonl` or `parquet`."""
    return f"data/{sha256}.{suffix}"


def fingerprints(sha256: str, kind: str) -> str:
    """Digests of what a data file asks, read as one of `tasks` or `warm_up`."""
    return f"fingerprints/{sha256}-{kind}.arrow"


def rl(run_name: str, key: str) -> str:
    """The folder of one RL stage; the functions below take it as `base`."""
    return f"runs/{run_name}/rl-{key}"


def spec(base: str) -> str:
    return f"{base}/spec.json"


def rl_manifest(base: str) -> str:
    return f"{base}/manifest.json"


def evaluation(run_name: str, key: str) -> str:
    return f"runs/{run_name}/evaluations/{key}"


def evaluation_report(output: str) -> str:
    """What says that the evaluation in the folder `output` is made; written last."""
    return f"{output}/report.json"


def evaluation_lease(output: str) -> str:
    """Who plays it."""
    return f"{output}/lease.json"


def gate(run_name: str, key: str) -> str:
    """The folder of what the gate found for one candidate; the functions below take it as `gate_base`."""
    return f"runs/{run_name}/gates/{key}"


def gate_decision(gate_base: str, number: int) -> str:
    return f"{gate_base}/decisions/{number:08d}.json"


def gate_approval(gate_base: str) -> str:
    """The question to a person, and the answer."""
    return f"{gate_base}/approval.json"


def trajectories(base: str) -> str:
    return f"{base}/trajectories"


def shard(base: str, worker: str, seq: int) -> str:
    return f"{base}/trajectories/{worker}/{seq:08d}.arrow"


def claim(base: str, group: int) -> str:
    return f"{base}/claims/{group:08d}.json"


def worker(base: str, number: int) -> str:
    return f"{base}/workers/{number:08d}.json"


def all_trouble(base: str) -> str:
    """The folder of what is known of tasks that do harm."""
    return f"{base}/trouble"


def trouble(base: str, task: int) -> str:
    return f"{base}/trouble/{task:08d}.json"


def window(base: str) -> str:
    return f"{base}/window.json"


def ledger(base: str, step: int) -> str:
    return f"{base}/ledger/{step:08d}.arrow"


def policy_manifest(base: str, version: int) -> str:
    return f"{base}/policies/{version:08d}/manifest.json"


def policy_weights(base: str, version: int, learner: str) -> str:
    """The folder of one learner's copy of a policy's weights (HF files)."""
    return f"{base}/policies/{version:08d}/{learner}"


def adapter(weights_prefix: str, name: str) -> str:
    """A file of the adapters that are part of merged weights. A folder of its own: beside the weights' `config.json`
    transformers would add them once more."""
    return f"{weights_prefix}/adapter/{name}"


def checkpoints(base: str) -> str:
    return f"{base}/checkpoints"


def checkpoint_manifest(base: str, step: int) -> str:
    return f"{base}/checkpoints/{step:08d}/manifest.json"


def checkpoint_expired(base: str, step: int) -> str:
    """Says that a checkpoint's files were removed by `headrace gc`, and by which rule."""
    return f"{base}/checkpoints/{step:08d}/expired.json"


def checkpoint_files(base: str, step: int, learner: str) -> str:
    return f"{base}/checkpoints/{step:08d}/{learner}"


def catalog(base: str) -> str:
    """The folder of the copies that audits read; a part's name says which ledger records it covers."""
    return f"{base}/catalog"


def catalog_part(base: str, first: int, end: int, sha256: str) -> str:
    """The copy of the ledger records `first` to `end` - 1, under the digest of its own bytes."""
    return f"{base}/catalog/{first:08d}-{end:08d}-{sha256[:16]}.parquet"


def metrics(base: str) -> str:
    """The folder of the steps' figures, as Parquet."""
    return f"{base}/metrics"


def metrics_part(base: str, first: int) -> str:
    """The figures of the steps in ledger records from `first` on, up to the next file's."""
    return f"{base}/metrics/{first:08d}.parquet"


def channel(name: str, channel_name: str) -> str:
    return f"registry/{name}/{channel_name}.json"
