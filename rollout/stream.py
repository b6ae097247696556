"""The token stream of one episode: prompt, sampled turn, continuation, sampled turn, … — it only ever grows.

Sampled ids stay as they were sampled; what the environment says is tokenized once and appended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rollout.engine import Completion


@dataclass
class TokenStream:
    """T tokens with, for each, whether the policy sampled it, its log-prob, and runs of policy versions."""

    tokens: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version_starts: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def feed(self, ids: Sequence[int]) -> None:
        """Append tokens that nobody sampled."""
        self.tokens.extend(ids)
        self.mask.extend([False] * len(ids))
        self.logprobs.extend([0.0] * len(ids))

    def sampled(self, completion: Completion) -> tuple[int, int]:
        """Append what the policy sampled; returns its start and end. ValueError where its parts don't fit together."""
        count = len(completion.token_ids)
        if not (count == len(completion.logprobs) == len(completion.versions)):
            raise ValueError("the engine returned token ids, log-probs and versions of different lengths")
        logprobs = np.asarray(completion.logprobs, dtype=np.float32)
        if not np.isfinite(logprobs).all():
            raise ValueError("the engine returned a log-prob that is not finite")
        start = len(self.tokens)
        self._note_versions(completion.versions, start)
        self.tokens.extend(completion.token_ids)
        self.mask.extend([True] * count)
        self.logprobs.extend(logprobs.tolist())
        return start, len(self.tokens)

    def append(self, other: "TokenStream") -> None:
        """Put another stream behind this one, as it is."""
        start = len(self.tokens)
        for place, version in zip(other.version_starts, other.versions, strict=True):
            self._note_versions([version], start + place)
        self.tokens += other.tokens
        self.mask += other.mask
        self.logprobs += other.logprobs

    def _note_versions(self, versions: Sequence[int], start: int) -> None:
        for place, version in enumerate(versions, start):
            if not self.versions or self.versions[-1] != version:
                self.version_starts.append(place)
                self.versions.append(version)
