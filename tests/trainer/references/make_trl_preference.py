"""DPO and ORPO as TRL computes them, from given log-probs: `python make_trl_preference.py` with TRL installed.

Writes `trl_preference.json` beside itself. TRL's own functions run on its own arithmetic; only the model in front of
them is replaced by the log-probs. Conservative DPO is TRL's loss type `aot`, which for a single pair is that formula.
"""

import json
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from trl import DPOTrainer
from trl.experimental.orpo import ORPOTrainer

PAIRS = 12
ACCELERATOR = SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)


def main() -> None:
    draw = np.random.default_rng(7)
    names = ("chosen", "rejected", "reference_chosen", "reference_rejected")
    sums = {name: [float(np.float32(v)) for v in draw.uniform(-40, -1, PAIRS)] for name in names}
    means = {name: [float(np.float32(v)) for v in -np.exp(draw.uniform(-7, 1.5, PAIRS))] for name in names[:2]}
    found = {
        "trl": version("trl"),
        "torch": torch.__version__,
        "dpo": [
            {"beta": beta, "label_smoothing": smoothing, **sums, "loss": dpo(sums, beta, smoothing)}
            for beta, smoothing in ((0.1, 0.0), (0.5, 0.0), (0.1, 0.2))
        ],
        "orpo": [{"odds_weight": weight, **means, **orpo(means, weight)} for weight in (0.1, 1.0)],
    }
    (Path(__file__).parent / "trl_preference.json").write_text(json.dumps(found, indent=1) + "\n")


def dpo(sums: dict[str, list[float]], beta: float, smoothing: float) -> list[float]:
    """The loss of each pair, as a batch of its own."""
    return [_dpo_pair(*pair, beta, smoothing) for pair in zip(*sums.values(), strict=True)]


def _dpo_pair(chosen: float, rejected: float, then_c: float, then_r: float, beta: float, smoothing: float) -> float:
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True), accelerator=ACCELERATOR, aux_loss_enabled=False, ld_alpha=None,
        precompute_ref_logps=True, f_divergence_type="reverse_kl", loss_weights=[1.0], beta=beta, use_weighting=False,
        loss_types=["aot" if smoothing else "sigmoid"], label_smoothing=smoothing, _total_train_tokens=0, _tp_size=1,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )  # fmt: skip
    column = torch.tensor([[chosen], [rejected]], dtype=torch.float64)
    outputs = SimpleNamespace(log_probs=column, entropy=column, mean_logits=column, is_top1=column > 0)
    inputs = {
        "input_ids": torch.zeros(2, 2, dtype=torch.long),
        "attention_mask": torch.ones(2, 2),
        "completion_mask": torch.ones(2, 2),
        "ref_chosen_logps": torch.tensor([then_c], dtype=torch.float64),
        "ref_rejected_logps": torch.tensor([then_r], dtype=torch.float64),
    }
    return DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False).item()


def orpo(means: dict[str, list[float]], weight: float) -> dict[str, list[float]]:
    """The odds ratio's part of the loss, as TRL subtracts it from the log-likelihood, and the rewards."""
    trainer = SimpleNamespace(beta=weight, accelerator=ACCELERATOR)
    values = [torch.tensor(means[name], dtype=torch.float32) for name in ("chosen", "rejected")]
    losses, chosen, rejected, *_ = ORPOTrainer.odds_ratio_loss(trainer, *values)
    return {"weighted_ratio": losses.tolist(), "chosen_reward": chosen.tolist(), "rejected_reward": rejected.tolist()}


if __name__ == "__main__":
    main()
