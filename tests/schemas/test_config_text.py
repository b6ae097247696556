"""A configuration is checked before anything starts, and complaints say what to do."""

from itertools import product

import pytest

from schemas.config_text import parse
from schemas.errors import RequestError
from schemas.stage_parts import rl_part

TEXT = """
name = "calculator"
[model.architecture]
hidden_size = 96
intermediate_size = 256
num_hidden_layers = 3
num_attention_heads = 3
num_key_value_heads = 3
[[warm_up]]
name = "copying"
data = "demos.jsonl"
steps = 10
optimizer.learning_rate = 1e-3
[rl]
tasks = "train.jsonl"
steps = 10
optimizer.learning_rate = 1e-3
[evaluation]
tasks = "held_out.jsonl"
[promotion]
tasks = "gate.jsonl"
"""


def test_overrides_are_typed_like_the_file_and_reach_list_items_by_name_or_number():
    run = parse(
        TEXT,
        "a.toml",
        [
            "rl.steps=3",
            "warm_up.copying.steps=5",
            "warm_up.0.shuffle=false",
            "environment.tools=['calculator']",
            "rl.loss.dual_clip=4.5",
            "root=some/where",
        ],
    )
    assert (run.rl.steps, run.warm_up[0].steps, run.warm_up[0].shuffle) == (3, 5, False)
    assert run.environment.tools == ("calculator",) and run.rl.loss.dual_clip == 4.5 and run.root == "some/where"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("rl.stepz=3", "a.toml: unknown key `rl.stepz`: did you mean `steps`?"),
        ("warm_up.0.stps=3", "unknown key `warm_up.0.stps`: did you mean `steps`?"),
        ("rl.max_staleness=-1", "`rl.max_staleness`: Input should be greater than or equal to 0 (got -1)"),
        ("rl.group_size=many", "`rl.group_size`: Input should be a valid integer"),
        ("environment.tools=['a','a']", "registers `a` twice"),
        ("rl.row_tokens=64", "row_tokens = 64 cannot fit a stream of rollout.max_length = "),
        ("warm_up.0.row_tokens=8", "row_tokens = 8 cannot fit a stream of max_length = "),
        (
            "rl.epochs=9",
            "9 updates on a batch make the last of them 8 updates stale: raise max_staleness to at least 8",
        ),
        ("rl.group_size=1", "group_size = 1 with the group-relative advantage `grpo`"),
        ("rl.critic_optimizer={learning_rate=0.1}", "critic_optimizer is of a critic"),
        (
            "rl.loss={algorithm='ppo', filter_zero_advantage=true}",
            "filter_zero_advantage compares the rewards of a group",
        ),
        (
            "rl.loss.algorithm=reinforce",
            "`rl.loss`: algorithm = `reinforce` is not known; known are grpo, dapo, dr_grpo, rloo, gspo, gspo_token",
        ),
        ("rl.loss.advantage=dr-grpo", "advantage = `dr-grpo` is not known; known are grpo, dr_grpo, rloo, gae"),
        ("rl.loss.policy=gsop", "policy = `gsop` is not known; known are ppo, gspo, gspo_token, cispo, or give"),
        ("rl.micro_batch=7", "micro_batch must divide the batch of 64 rows"),
        ("promotion.approval_seconds=inf", "Input should be less than or equal to 31536000 (got inf)"),
        ("promotion.min_improvement=2", "`promotion.min_improvement`: Input should be less than or equal to 1 (got 2)"),
        ("promotion.min_improvement=nan", "`promotion.min_improvement`: Input should be"),
        ("rl.publish_every=9", "publish at least every max_staleness + 1 updates"),
        ("model.architecture.num_attention_heads=5", "hidden_size must be a multiple"),
        ("rollout.engine=scripted", "needs rollout.script"),
        ("rollout.vllm.adapters=true", 'is for vLLM\'s servers: set rollout.engine = "vllm" or leave it out'),
        ("rollout={engine='vllm', vllm={adapters=true}}", "rollout.vllm.adapters needs adapters to load: add [lora]"),
        ("warm_up.3.steps=1", "there is no item `3`"),
        ("warm_up.0.kind=dop", "a.toml: `warm_up.0`: `kind` is one of sft, dpo, orpo (got 'dop')"),
        ("warm_up.0.kind=dpo", "the warm_up stage `copying` (dpo) has its reference policy missing"),
        ("warm_up.0.beta=1", "a.toml: unknown key `warm_up.0.beta`"),
        ("warm_up.0.optimizer.learning_rate=-1", "`warm_up.0.optimizer.learning_rate`: Input should be"),
        ("rl.idle_seconds=inf", "a.toml: `rl.idle_seconds` must be a finite number (got inf)"),
        ("rollout.temperature=inf", "`rollout.temperature` must be a finite number (got inf)"),
        ("environment.options={scale=[1.0,nan]}", "`environment.options.scale.1` must be a finite number (got nan)"),
        ("name.x=1", "is a value, not a section"),
        ("nonsense", "is not of the form a.b=value"),
        ("rl.steps", "is not of the form a.b=value"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(override, sentence):
    with pytest.raises(RequestError) as caught:
        parse(TEXT, "a.toml", [override])
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("lora.rank=513", "vLLM takes adapters up to rank 512: lower lora.rank"),
        ("rl.publish_dtype=bfloat16", 'set rl.publish_dtype = "float32"'),
    ],
)
def test_adapters_that_vllm_could_not_load_are_refused(override, sentence):
    with pytest.raises(RequestError) as caught:
        parse(TEXT, "a.toml", ["rollout.engine=vllm", "rollout.vllm.adapters=true", "lora.rank=4", override])
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_a_warm_up_has_the_keys_of_its_kind():
    overrides = ["model.path=w", "warm_up.0.kind=dpo", "warm_up.0.beta=0.3"]
    stage = parse(TEXT, "a.toml", overrides).warm_up[0]
    assert (stage.kind, stage.beta) == ("dpo", 0.3)
    with pytest.raises(RequestError, match=r"unknown key `warm_up.0.betta`: did you mean `beta`\?"):
        parse(TEXT, "a.toml", [*overrides, "warm_up.0.betta=1"])
    with pytest.raises(RequestError, match=r"`warm_up.0.beta`: Input should be greater than 0 \(got 0\)"):
        parse(TEXT, "a.toml", [*overrides, "warm_up.0.beta=0"])
    assert parse(TEXT, "a.toml", ["warm_up.0.kind=orpo"]).warm_up[0].odds_weight == 0.1
    with pytest.raises(RequestError, match=r"`warm_up.0`: micro_batch must divide batch_size = 32"):
        parse(TEXT, "a.toml", ["warm_up.0.kind=orpo", "warm_up.0.micro_batch=5"])


def test_missing_sections_and_broken_toml_are_named():
    with pytest.raises(RequestError, match="`rl` is missing"):
        parse(TEXT.split("[rl]")[0] + '[evaluation]\ntasks="h"\n[promotion]\ntasks="g"\n', "a.toml")
    with pytest.raises(RequestError, match=r"a\.toml is not valid TOML"):
        parse("name = ", "a.toml")
    with pytest.raises(RequestError, match="from scratch"):
        parse('name = "x"\n[model]\n' + "[rl]" + TEXT.split("[rl]")[1], "a.toml")


def test_a_stage_key_hashes_what_is_made_not_where_or_how_fast():
    plain = rl_part(parse(TEXT, "a.toml"))
    assert plain == rl_part(parse(TEXT, "a.toml", ["rl.steps=99", "rollout.workers=9", "root=x", "rl.cores=[0]"]))
    assert plain != rl_part(parse(TEXT, "a.toml", ["rl.max_staleness=3"]))
    assert plain != rl_part(parse(TEXT, "a.toml", ["rollout.temperature=0.5"]))


def test_a_falling_schedule_without_its_own_length_makes_the_steps_part_of_the_key():
    falling = ["rl.optimizer.schedule=cosine"]
    assert rl_part(parse(TEXT, "a", falling)) != rl_part(parse(TEXT, "a", [*falling, "rl.steps=99"]))


def test_vllm_samples_at_temperatures_up_to_two():
    parse(TEXT, "a.toml", ["rollout.engine=vllm", "rollout.temperature=2.0"])
    parse(TEXT, "a.toml", ["rollout.temperature=2.5"])
    with pytest.raises(RequestError, match="vLLM samples at temperatures up to 2"):
        parse(TEXT, "a.toml", ["rollout.engine=vllm", "promotion.temperature=2.5"])


def test_how_servers_are_run_leaves_the_stage_key_alone_and_what_they_compute_in_does_not():
    plain, *others = (
        rl_part(parse(TEXT, "a.toml", ["rollout.engine=vllm", f"rollout.vllm.{setting}"]))
        for setting in ("restarts=3", "restarts=1", "python=elsewhere", "dtype=bfloat16")
    )
    assert [plain == other for other in others] == [True, True, False]
    sglang = rl_part(parse(TEXT, "a.toml", ["rollout.engine=sglang", "rollout.sglang.python=elsewhere"]))
    assert (sglang["sglang"], sglang["rollout"]["engine"]) == ({"dtype": "float32"}, "sglang")


def test_servers_by_url_are_not_shared():
    for engine, shared in product(
        ("vllm", "sglang"), ("rollout.workers=2", "evaluation.workers=2", "evaluation.every=1")
    ):
        urls = f'rollout.{engine}.urls=["http://a:8000","http://b:8000"]'
        alone = [f"rollout.engine={engine}", "rollout.workers=1", "evaluation.workers=1", urls]
        servers = parse(TEXT, "a.toml", alone).rollout.servers
        assert servers is not None and len(servers.urls) == 2
        with pytest.raises(RequestError, match=r"set rollout.workers = 1, evaluation.workers = 1 and evaluation.every"):
            parse(TEXT, "a.toml", [*alone, shared])
