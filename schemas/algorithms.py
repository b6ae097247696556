"""The algorithms of `rl.loss` by name, and what each name stands for.

A preset is only a set of defaults: every setting can be given beside it, and what was resolved is recorded.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from schemas.base import Count, PositiveFloat, Section

ADVANTAGES = ("grpo", "dr_grpo", "rloo", "gae")
POLICY_LOSSES = ("ppo", "gspo", "gspo_token", "cispo")

PRESETS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dapo": {
        "clip_high": 0.28,
        "dual_clip": None,
        "filter_zero_advantage": True,
    },
    "dr_grpo": {"advantage": "dr_grpo", "aggregation": "sequence_sum", "dual_clip": None},
    "rloo": {"advantage": "rloo", "aggregation": "sequence_sum", "dual_clip": None},
    "gspo": {
        "policy": "gspo",
        "clip_low": 3e-4,
        "clip_high": 4e-4,
        "dual_clip": None,
        "aggregation": "sequence_mean",
    },
    "gspo_token": {
        "policy": "gspo_token",
        "clip_low": 3e-4,
        "clip_high": 4e-4,
        "dual_clip": None,
        "aggregation": "sequence_mean",
    },
    "ppo": {"advantage": "gae", "dual_clip": None},
    "cispo": {"policy": "cispo", "clip_low": 1.0, "clip_high": 4.0, "dual_clip": None},
}
"""`rl.loss.algorithm` → the settings that it changes from their defaults."""


def with_preset(given: dict[str, Any]) -> dict[str, Any]:
    """The settings of `rl.loss` with those that its algorithm implies. ValueError for an unknown algorithm."""
    name = given.get("algorithm", "grpo")
    if name not in PRESETS:
        raise ValueError(f"algorithm = `{name}` is not known; known are {', '.join(PRESETS)}")
    return PRESETS[name] | given


def check_name(setting: str, name: str, known: tuple[str, ...]) -> None:
    """ValueError unless a name is known or of the form `module:function`."""
    if name not in known and ":" not in name:
        raise ValueError(f"{setting} = `{name}` is not known; known are {', '.join(known)}, or give `module:function`")


class Loss(Section):
    """The policy loss. Log-ratios are taken against the policy that sampled; docs/algorithms.md has the formulas."""

    algorithm: str = "grpo"
    """Sets the defaults of the rest: `grpo`, `dapo`, `dr_grpo`, `rloo`, `gspo`, `gspo_token`, `ppo`, `cispo`."""
    advantage: str = "grpo"
    """From the rewards of a group. `grpo`: (reward - mean) / standard deviation; `dr_grpo`: reward - mean; `rloo`:
    reward - mean of the others; or `module:function` from the configuration's folder, [G] to [G]. `gae`: from the
    rewards and a critic's values, token by token, without a group."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    """`gae`: what a reward is worth one sampled token earlier."""
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    """`gae`: 0 trusts the critic after one token, 1 trusts what came out in the end."""
    value_clip: PositiveFloat | None = 0.2
    """`gae`: a value's loss is that of a move of at most so much in one step."""
    whiten: bool = True
    """`gae`: advantages get mean 0 and variance 1 over the batch's sampled tokens."""
    policy: str = "ppo"
    """`ppo`: clipped surrogate by token; `gspo`: by sequence; `gspo_token`; `cispo`: clipped weights; or
    `module:function` taking (terms, settings), see `trainer/losses.py`."""
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.2
    """The ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    dual_clip: PositiveFloat | None = 3.0
    """For negative advantages the loss is bounded by this multiple of the advantage (dual-clip PPO)."""
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum"] = "token_mean"
    """`token_mean`: over all tokens; `sequence_mean`: over sequences of their token means; `sequence_sum`: over
    sequences of their token sums by `rollout.max_length`."""
    kl: Literal["none", "k1_reward", "k2", "k3"] = "none"
    """Divergence from the weights that RL starts from: k1 off the reward, or k2 or k3 in the loss."""
    kl_coefficient: Annotated[float, Field(ge=0)] = 0.0
    correction: Literal["none", "decoupled", "truncated", "icepop", "sequence_mask"] = "none"
    """What makes up for staleness. `none`: the clip alone. Others clip against the learner's own policy at the step and
    weigh tokens by learner / sampler: `decoupled` as it is, `truncated` at most `correction_high`, `icepop` and (by the
    sequence's geometric mean) `sequence_mask` drop what is outside [`correction_low`, `correction_high`]."""
    correction_low: PositiveFloat = 0.5
    correction_high: PositiveFloat = 2.0
    filter_zero_advantage: bool = False
    """End groups whose rewards are all equal as `zero_advantage` instead of training them."""
    overlong_tokens: Count = 0
    """Episodes that end within so many tokens of `rollout.max_length` lose up to `overlong_penalty`, linearly."""
    overlong_penalty: Annotated[float, Field(ge=0)] = 1.0

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, given: Any) -> Any:
        return with_preset(given) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _consistent(self) -> "Loss":
        check_name("advantage", self.advantage, ADVANTAGES)
        check_name("policy", self.policy, POLICY_LOSSES)
        if (self.kl == "none") != (self.kl_coefficient == 0):
            raise ValueError("kl and kl_coefficient belong together: set both, or neither")
        if self.critic and self.filter_zero_advantage:
            raise ValueError(
                "filter_zero_advantage compares the rewards of a group, which `gae` does not: leave it out"
            )
        if self.correction_low >= self.correction_high:
            raise ValueError("correction_low must be below correction_high")
        return self

    @property
    def critic(self) -> bool:
        """Whether a critic is trained beside the policy."""
        return self.advantage == "gae"

    @property
    def least(self) -> int:
        """The fewest samples of a group that can be trained."""
        return 1 if self.critic else 2
