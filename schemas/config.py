"""The configuration of a run: one TOML file, checked before anything starts. The text under each field is its
reference.

Relative paths are taken from the configuration file's folder. `schemas.config_text` parses the file and the overrides.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from schemas.base import Count, Fraction, Name, Positive, PositiveFloat, Section
from schemas.lora import LoRA
from schemas.rl import RL
from schemas.servers import VLLM_RANK, Servers, SglangServers, VllmServers
from schemas.upkeep import Retention, Supervision
from schemas.warm_ups import WarmUp, check_row


class Architecture(Section):
    """A decoder made from scratch, in Hugging Face's names (Llama family)."""

    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    num_key_value_heads: Positive
    max_position_embeddings: Positive = 512
    """The longest stream of tokens the model may see."""
    rope_theta: PositiveFloat = 10000.0
    rms_norm_eps: PositiveFloat = 1e-5
    tie_word_embeddings: bool = True
    initializer_range: PositiveFloat | None = None
    """Standard deviation of fresh weights; default 1 / sqrt(hidden_size)."""

    @model_validator(mode="after")
    def _divides(self) -> "Architecture":
        if self.hidden_size % self.num_attention_heads:
            raise ValueError("hidden_size must be a multiple of num_attention_heads")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads")
        return self


class Model(Section):
    """Where the weights come from."""

    path: str | None = None
    """A Hugging Face folder, a store URL of one, `RUN@STEP` (a checkpoint of ours), or `champion` (what
    `promotion.channel` points to; from scratch while it points to nothing). Left out: from scratch. A run that starts
    from a champion skips its warm-ups."""
    architecture: Architecture | None = None
    """The shape of a model made from scratch (byte-level tokenizer)."""

    @model_validator(mode="after")
    def _has_source(self) -> "Model":
        if self.architecture is None and self.path in (None, "champion"):
            raise ValueError(
                "give model.path (a weights folder or a checkpoint) or [model.architecture] (from scratch)"
            )
        return self


class Environment(Section):
    """What the agent acts in. Names are built in, or `module:Class` from the configuration's folder."""

    environment: str = "ToolEnvironment"
    agent: str = "ToolAgent"
    tools: tuple[str, ...] = ()
    """Tools offered to the agent: `calculator`, `finish`, `python`, `shell`, `view`, `edit` (docs/environments.md), or
    `module:Class`."""
    reward: str = "exact_match"
    """How an episode is scored: a built-in name or `module:function` taking (task, messages) to a number in [0, 1]."""
    system_prompt: str = ""
    max_turns: Positive = 4
    """Assistant turns per episode."""
    options: dict[str, Any] = {}
    """Passed to the environment's class as keyword arguments."""
    step_seconds: PositiveFloat = 30.0
    """Deadline of one reset or step, with all tool calls of its turn."""
    call_seconds: PositiveFloat | None = None
    """Deadline of one tool call, below `step_seconds`: the model then reads that it took too long, and the episode goes
    on. Default: the step's, which fails the episode."""
    tool_seconds: PositiveFloat | None = None
    """Seconds that all steps of an episode may take together; then it ends as `max_tool_seconds`. Default: no limit."""
    reward_seconds: PositiveFloat = 60.0
    """Deadline of scoring."""
    max_observation: Positive = 8192
    """Characters that one observation may have; more fails the episode as `flooded`."""

    @model_validator(mode="after")
    def _deadlines(self) -> "Environment":
        if self.call_seconds is not None and self.call_seconds >= self.step_seconds:
            raise ValueError("call_seconds must be below step_seconds, which ends all calls of a turn")
        return self


class Rollout(Section):
    """The workers that play episodes."""

    engine: Literal["jax", "vllm", "sglang", "scripted"] = "jax"
    """`jax`: the embedded engine; `vllm`, `sglang`: servers; `scripted`: answers of a function, for tests and load."""
    vllm: VllmServers = VllmServers()
    sglang: SglangServers = SglangServers()
    script: str = ""
    """`module:function` of the scripted engine."""
    workers: Positive = 2
    max_concurrency: Positive = 32
    """Episodes in flight per worker."""
    slots: Positive = 32
    """Sequences the engine decodes at once."""
    decode_steps: Positive = 8
    """Tokens decoded per dispatch; new requests and new weights join between dispatches."""
    max_length: Positive = 256
    """Tokens of a whole episode (the context)."""
    max_tokens_per_turn: Positive = 64
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of likeliest tokens whose probability adds up to this; 1: from all. Here and in
    `top_k`, recorded log-probs stay those of the whole distribution, without temperature: what the learner computes."""
    top_k: Count = 0
    """Sample from this many of the likeliest tokens, before `top_p`; 0: from all."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """A turn also ends with the token that completes one of these in its text; the token is kept and trained."""
    episode_seconds: PositiveFloat = 300.0
    """Deadline of an episode up to its scoring, which then has its own (`environment.reward_seconds`)."""
    attempts: Positive = 3
    """Times a failing sample is tried before it counts as failed."""
    quarantine_after: Count = 2
    """A task is not played any more in this RL stage once all samples failed all their attempts in so many of its
    groups in a row, or once three workers ended one after the other while they played one of its groups. Its later
    groups end with the reason and train nothing. 0: never. Raising it takes tasks that failed out of quarantine."""
    probe_tolerance: PositiveFloat = 1e-3
    """Largest difference between the engine's and the learner's log-probs of a published policy's probe; a worker whose
    engine differs more stops. An engine that computes in bfloat16 needs about 0.1."""
    weight_update: Literal["in_flight", "drain"] = "in_flight"
    """Swap weights between decode steps, or let running episodes finish first."""
    cache_on_update: Literal["keep", "recompute"] = "keep"
    """What becomes of the keys and values of running episodes when weights are swapped. `keep`: later tokens look at
    those of the older policy, so their log-probs are not quite the newer one's; `recompute`: the newer one's, at the
    price of reading the streams again (servers always do). New episodes never look at an older policy's."""
    seal_rows: Positive = 64
    seal_bytes: Positive = 16_000_000
    seal_seconds: PositiveFloat = 2.0
    """A shard is sealed when it holds so many rows or bytes, or its oldest row is this old."""
    heartbeat_seconds: PositiveFloat = 2.0
    lease_seconds: PositiveFloat = 20.0
    """A worker without a heartbeat for this long is taken for dead."""
    poll_seconds: PositiveFloat = 0.2
    """How often workers look at window and policy, and a learner that has waited for a while at the shards."""
    max_takeovers: Positive = 3
    """Times a group may pass to another worker before the learner ends it as failed."""
    cores: tuple[tuple[int, ...], ...] = ()
    """Processor cores of each worker, given out in turn; empty: not bound. Cores that a machine lacks are left out."""
    infrastructure: Literal["process", "deployment"] = "process"
    """`process`: the run starts its workers beside itself. `deployment`: it asks `deployment` for them, and they meet
    it in the store alone."""
    deployment: Annotated[str, Field(pattern=r"^[^/]+/[^/]+$")] = "rollout-worker/headrace"
    """The Prefect deployment of workers, as FLOW/NAME. The run asks for it `workers` times, one worker each."""
    join_seconds: PositiveFloat = 300.0
    """`deployment`: the run stops with the cause when no worker is there for so long."""
    driver_seconds: PositiveFloat = 300.0
    """A worker that joined from elsewhere leaves when nobody has driven the run for so long."""

    @property
    def servers(self) -> Servers | None:
        """The servers that sample, if any do."""
        return {"vllm": self.vllm, "sglang": self.sglang}.get(self.engine)


class Suite(Section):
    """A named set of tasks that checkpoints are measured on."""

    name: Name
    tasks: str
    """JSONL or Parquet file of tasks; no other set may share a task with it."""
    temperature: Annotated[float, Field(ge=0)] = 1.0
    samples: Positive = 1
    """Episodes per task."""

    @property
    def setting(self) -> str:
        """What the suite is called where task sets are told apart: in `run.json`, reports and messages."""
        return f"evaluation.suites.{self.name}"


class Evaluation(Section):
    """The figures that are reported: success on held-out tasks."""

    tasks: str
    """Held-out tasks; neither the run nor an ancestor trains on them, and they never decide a promotion."""
    temperatures: tuple[Annotated[float, Field(ge=0)], ...] = (1.0, 0.0)
    samples: Positive = 1
    """Episodes per task."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    workers: Positive = 2
    """Evaluations run side by side."""
    every: Count = 0
    """Also evaluate every k-th checkpoint, those whose step is a multiple of k * `rl.checkpoint_every`, while RL goes
    on. 0: only where RL starts and where it ends, once it has ended."""
    infrastructure: Literal["process", "deployment"] = "process"
    """Who evaluates while RL goes on. `process`: the run, in one process beside the learner. `deployment`: flow runs of
    `deployment`, fired by an event that the run sends. What is still due when RL has ended is made by the run."""
    deployment: Annotated[str, Field(pattern=r"^[^/]+/[^/]+$")] = "evaluate-run/headrace"
    """The Prefect deployment of evaluators, as FLOW/NAME."""
    suites: tuple[Suite, ...] = ()
    """Further task sets, played with every checkpoint that is evaluated; the gate may name them."""
    pass_at: tuple[Positive, ...] = (1,)
    """Each k of the pass@k that are reported; at most `samples`. A suite with fewer samples leaves out the higher."""
    category: str = ""
    """Field of the tasks by whose values success is told apart; tasks of `tasks` and of suites must have it."""


class Promotion(Section):
    """The gate: whether the run's candidate becomes the champion."""

    tasks: str
    """The gate's tasks: not the reported ones."""
    name: Name | None = None
    """The model's name in the registry; default: the configuration's name."""
    channel: Name = "production"
    """The pointer that the gate moves. `candidate` is moved without a gate, to whatever RL ended with."""
    temperature: Annotated[float, Field(ge=0)] = 1.0
    samples: Positive = 1
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """The improvement's paired bootstrap interval must lie above `min_improvement` at this confidence."""
    min_improvement: Annotated[float, Field(ge=-1, le=1)] = 0.0
    """0.02: better by more than two percentage points of success."""
    allow_equal: bool = False
    """Take a candidate that is not worse: its interval may reach down to -`max_regression`."""
    no_regression: tuple[Name, ...] = ()
    """Names of `evaluation.suites` on which the candidate must not be worse than the champion."""
    max_regression: Fraction = 0.02
    """How far below 0 the interval on such a suite may reach."""
    max_staleness: Annotated[float, Field(ge=0)] | None = None
    """Greatest mean staleness of what the candidate was trained on."""
    max_mismatch_kl: PositiveFloat | None = None
    """Greatest divergence of the sampled from the learner's log-probs (`mismatch_kl`), averaged over the updates that
    made the candidate."""
    audit: bool = True
    """`headrace audit verify` of the run must be ok."""
    approval: bool = False
    """A person must agree once all else is fulfilled: the flow pauses in Prefect for it."""
    approval_seconds: Annotated[float, Field(gt=0, le=31_536_000)] = 86400.0
    """How long the flow waits for the person; a year at most."""
    resamples: Positive = 10_000
    """Resamples of the bootstrap."""


class Run(Section):
    """The whole configuration."""

    name: Name
    """The run's name unless `--run` gives another."""
    root: str | None = None
    """Where everything is stored: a folder or a store URL. `--root` and `HEADRACE_ROOT` go before it; default
    `./.headrace`."""
    seed: Count | None = None
    """Seeds everything that samples. Left out, the run's name seeds RL and evaluation, and warm-ups use 0."""
    model: Model
    warm_up: tuple[WarmUp, ...] = ()
    """Warm-up stages, in order, each starting from the one before."""
    environment: Environment = Environment()
    rollout: Rollout = Rollout()
    rl: RL
    lora: LoRA | None = None
    """Train adapters instead of all weights. Left out: all weights."""
    evaluation: Evaluation
    promotion: Promotion
    retention: Retention = Retention()
    supervision: Supervision = Supervision()

    @model_validator(mode="after")
    def _consistent(self) -> "Run":
        names = [s.name for s in self.warm_up]
        if len(set(names)) != len(names):
            raise ValueError("two warm_up stages have the same name")
        if self.model.path is None and self.warm_up and self.warm_up[0].kind == "dpo":
            raise ValueError(
                f"the warm_up stage `{names[0]}` (dpo) has its reference policy missing: it would start from scratch; "
                f"give model.path, or put another warm-up before it"
            )
        repeated = {t for t in self.environment.tools if self.environment.tools.count(t) > 1}
        if repeated:
            raise ValueError(f"environment.tools registers `{sorted(repeated)[0]}` twice")
        if self.rollout.engine == "scripted" and not self.rollout.script:
            raise ValueError("rollout.engine = scripted needs rollout.script = `module:function`")
        shared = max(self.rollout.workers, self.evaluation.workers) > 1 or self.evaluation.every
        for servers in (self.rollout.vllm, self.rollout.sglang):
            if servers.urls and shared:
                raise ValueError(
                    f"every worker and evaluation decides over the weights of its {servers.label} servers: with "
                    f"{servers.part}.urls, set rollout.workers = 1, evaluation.workers = 1 and evaluation.every = 0"
                )
        if self.rollout.engine == "vllm" and max(_temperatures(self)) > 2:
            raise ValueError("vLLM samples at temperatures up to 2: lower the temperature or take another engine")
        if self.rollout.vllm.adapters:
            _check_adapters(self)
        if self.rl.max_staleness == 0 and self.rollout.weight_update != "in_flight":
            raise ValueError(
                "max_staleness = 0 never has episodes in flight across an update: leave weight_update at in_flight"
            )
        row, length = self.rl.row_tokens, self.rollout.max_length
        if row is not None:
            check_row(row, "rollout.max_length", length)
        _check_evaluation(self.evaluation, self.promotion)
        return self

    @property
    def registry_name(self) -> str:
        return self.promotion.name or self.name


def _temperatures(run: Run) -> list[float]:
    """Every temperature that something is sampled at."""
    evaluation = (*run.evaluation.temperatures, *[s.temperature for s in run.evaluation.suites])
    return [run.rollout.temperature, run.promotion.temperature, *evaluation]


def _check_adapters(run: Run) -> None:
    if run.rollout.engine != "vllm":
        raise ValueError('rollout.vllm.adapters is for vLLM\'s servers: set rollout.engine = "vllm" or leave it out')
    if run.lora is None:
        raise ValueError("rollout.vllm.adapters needs adapters to load: add [lora] or leave it out")
    if run.lora.rank > VLLM_RANK:
        raise ValueError(
            f"vLLM takes adapters up to rank {VLLM_RANK}: lower lora.rank or leave out rollout.vllm.adapters"
        )
    if run.rl.publish_dtype != "float32":
        raise ValueError(
            'rollout.vllm.adapters adds adapters to weights that are not rounded: set rl.publish_dtype = "float32"'
        )


def _check_evaluation(evaluation: Evaluation, promotion: Promotion) -> None:
    names = [s.name for s in evaluation.suites]
    if len(set(names)) != len(names):
        raise ValueError("two evaluation.suites have the same name")
    unknown = [n for n in promotion.no_regression if n not in names]
    if unknown:
        known = ", ".join(names) or "there is none"
        raise ValueError(
            f"promotion.no_regression names the suite `{unknown[0]}`, which is not in evaluation.suites ({known})"
        )
    if max(evaluation.pass_at, default=1) > evaluation.samples:
        raise ValueError(f"evaluation.pass_at = {max(evaluation.pass_at)} needs evaluation.samples of at least as many")
    if promotion.channel == "candidate":
        raise ValueError("promotion.channel = candidate: that channel is moved without a gate; choose another name")
