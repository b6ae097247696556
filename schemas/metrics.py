"""The figures of a step, one row each in the Parquet files under `metrics/` of an RL stage. The text is their meaning.

Figures of an update are null where a step only ended groups, and seconds where the learner died between measuring
them and writing the next record: what a replay can compute again is never lost.
"""

import pyarrow as pa

FIGURES: dict[str, str] = {
    "reward": "mean reward of the trained trajectories, before penalties",
    "success": "share of them that solved their task",
    "tokens": "tokens of the batch, prompts and observations included",
    "sampled_tokens": "tokens that the policy sampled",
    "length": "mean tokens of a trajectory",
    "length_max": "tokens of the longest",
    "two_versions": "share of trajectories that more than one policy sampled",
    "zero_advantage": "share of groups, trained or filtered, whose advantages (with `gae`: rewards) are all zero",
    "off_policy/mean": "staleness in optimizer updates: in flight + in queue",
    "off_policy/max": "the greatest",
    "off_policy/in_flight/mean": "the part that arose while episodes ran",
    "off_policy/in_flight/max": "the greatest",
    "off_policy/in_queue/mean": "the part that arose between sampling and training",
    "off_policy/in_queue/max": "the greatest",
    "off_policy/dropped": "trajectories that ended as stale",
    "loss": "the policy loss that was minimised",
    "grad_norm": "global norm of the gradient before clipping",
    "entropy": "mean entropy of the sampled tokens' distributions, in nats",
    "mismatch_kl": "KL(sampler || learner) per sampled token by k3",
    "effective_sample_size": "(sum of ratios)^2 / sum of squares, as a share of the sampled tokens",
    "ratio_max": "greatest learner / sampler ratio of a token",
    "clip_fraction": "share of sampled tokens whose loss the clip decides",
    "masked_fraction": "share that the correction drops",
    "reference_kl": "k2 or k3 per sampled token from the weights that RL starts from; null without `rl.loss.kl`",
    "value_loss": "the critic's loss; null without one",
    "value_grad_norm": "global norm of its gradient before clipping",
    "value_explained": "share of the returns' variance that its values account for, before the step",
    "trainer/seconds": "the step: record, update, publication, checkpoint",
    "trainer/update_seconds": "the update alone",
    "trainer/waited_seconds": "waiting for trajectories before the step",
}
"""Name → meaning."""

PLACE = pa.schema([
    ("step", pa.int64()),
    ("index", pa.int64()),
    ("version", pa.int64()),
    ("updates", pa.int32()),
    ("learner", pa.string()),
    ("trajectories", pa.int32()),
    ("trained", pa.int32()),
])  # fmt: skip
"""Which step it was, in which ledger record; how many trajectories ended at it, and how many of them were trained."""

COLUMNS = pa.schema([*PLACE, *((name, pa.float64()) for name in FIGURES)])
