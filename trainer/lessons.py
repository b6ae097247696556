"""What each kind of warm-up trains: how its batches are made, and the step that takes them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optax

from models.config import DecoderConfig
from models.pure import Params
from models.sharding import ALONE, Placement
from schemas.errors import RequestError
from schemas.warm_ups import DPO, ORPO, SFT
from storage.pulse import Repeated, turn
from trainer.packing import sft_layout
from trainer.preference_data import Pairs, collate_pairs
from trainer.preference_step import make_preference_step, reference_logprobs
from trainer.sft_data import collate
from trainer.step import WHOLE, Frozen, Step, make_sft_step
from trainer.streams import Example, Pair


@dataclass(frozen=True)
class Lesson:
    """A stage's training, ready to be run."""

    step: Step
    parts: Callable[[np.ndarray], Sequence[Any]]
    """Positions of examples or pairs → their micro-batches, each with a field `valid`."""


def supervised(
    decoder: DecoderConfig,
    optimizer: optax.GradientTransformation,
    examples: Sequence[Example],
    stage: SFT,
    frozen: Frozen = WHOLE,
    placement: Placement = ALONE,
) -> Lesson:
    """Imitation of demonstrations."""
    step, layout = make_sft_step(decoder, optimizer, frozen, placement), sft_layout(stage)
    return Lesson(step, lambda chosen: collate([examples[i] for i in chosen], layout))


def preferring(
    decoder: DecoderConfig,
    optimizer: optax.GradientTransformation,
    pairs: Sequence[Pair],
    stage: DPO | ORPO,
    reference: np.ndarray,
    frozen: Frozen = WHOLE,
    placement: Placement = ALONE,
) -> Lesson:
    """DPO or ORPO on pairs. `reference`: [len(pairs), 2] what the reference policy gives them."""
    step = make_preference_step(decoder, stage, optimizer, frozen, placement)

    def part(chosen: np.ndarray) -> Pairs[np.ndarray]:
        return collate_pairs([pairs[i] for i in chosen], stage.max_length, reference[chosen])

    return Lesson(step, lambda chosen: [part(some) for some in _parts(chosen, stage.at_once)])


def score_reference(
    decoder: DecoderConfig,
    reference: Params | None,
    pairs: Sequence[Pair],
    stage: DPO | ORPO,
    plan: np.ndarray,
    limit: float,
    placement: Placement = ALONE,
) -> np.ndarray | None:
    """[len(pairs), 2] summed log-probs under the reference policy of those pairs that are in the plan, else 0.

    They are computed once, before the first step: the reference never changes, a pair needs two numbers of it, and its
    weights need not stay in the device's memory while the policy is trained.

    `reference`: the weights that the stage starts from, None where they are from scratch. `limit`: seconds that a batch
    may take. None if a stop was asked for. RequestError for DPO without a reference.
    """
    values = np.zeros((len(pairs), 2), np.float32)
    if isinstance(stage, ORPO):
        return values
    if reference is None:
        raise RequestError(f"warm-up `{stage.name}`: reference policy missing: dpo can't start from scratch")
    score, scoring = reference_logprobs(decoder, reference, placement), Repeated("scoring the reference policy", limit)
    for part in _parts(np.unique(plan), stage.at_once):
        if turn():
            return None
        with scoring.once():
            values[part] = score(collate_pairs([pairs[i] for i in part], stage.max_length))
    return values


def _parts(items: np.ndarray, size: int) -> list[np.ndarray]:
    """The items in parts of one size, since a shape compiles once; the last part is filled up with its last item."""
    filled = np.pad(items, (0, -len(items) % size), mode="edge")
    return list(filled.reshape(-1, size))
