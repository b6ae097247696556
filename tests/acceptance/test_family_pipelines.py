"""From a checkpoint of Qwen 3, Gemma 3 and Llama 3 to a champion by `headrace`: warm-up, RL, gate and export.

Checkpoints have the family's architecture and chat format, a vocabulary of a few hundred and random weights; half of
the demonstrations call the calculator and half give up, and RL is rewarded for calls that the tool could answer.
"""

import json
import random
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support import real_run
from support.chats import CHATS, tokenizer_of
from support.real_run import Project, write
from support.recount import recount

from models.chat import chat_format
from models.chat_gemma import GemmaFormat
from models.chat_llama import LlamaFormat
from models.chatml import ChatMLFormat
from models.config import DecoderConfig
from models.pure import flatten, init_params
from models.tokenizer import tokenizer_from_files
from models.weights import load_folder, to_files
from rollout.calculator import CalculatorTool

FAMILIES = Path(__file__).parents[1] / "models/families"
HIDDEN = 48
SIZES = {
    "hidden_size": HIDDEN, "intermediate_size": 96, "head_dim": 12, "max_position_embeddings": 1024,
    "initializer_range": HIDDEN**-0.5,
}  # fmt: skip
BASES = {"full_attention": {"rope_type": "default", "rope_theta": 1e4}, "sliding_attention": {
    "rope_type": "default", "rope_theta": 1e3,
}}  # fmt: skip
LAYERS = ["sliding_attention", "full_attention"]
OWN: dict[str, dict[str, Any]] = {
    "qwen3": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "gemma3": {
        "num_hidden_layers": 2, "layer_types": LAYERS, "sliding_window": 64, "query_pre_attn_scalar": 12,
        "final_logit_softcapping": None, "rope_parameters": BASES,
    },
    "llama3": {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    }},
}  # fmt: skip
"""What differs from the checkpoint in `tests/models/families`, which is made to show every part, not to learn."""
CASES = [
    ("qwen3", "qwen3", ChatMLFormat),
    ("gemma3", "gemma3", GemmaFormat),
    ("llama3", "llama3_1", LlamaFormat),
]
STEPS, GROUPS, SIZE = 16, 4, 8
CONFIG = f"""
name = "small"
seed = 0
[model]
path = "model"
[[warm_up]]
name = "habit"
data = "demos.jsonl"
steps = 150
batch_size = 16
max_length = 768
optimizer = {{learning_rate = 1e-2, schedule = "cosine", warmup_steps = 10, decay_steps = 150, b2 = 0.98}}
[environment]
tools = ["calculator"]
reward = "reward:called"
max_turns = 2
[rollout]
workers = 1
slots = 16
max_concurrency = 32
max_length = 768
max_tokens_per_turn = 40
seal_seconds = 0.5
[rl]
tasks = "train.jsonl"
steps = {STEPS}
groups_per_batch = {GROUPS}
group_size = {SIZE}
micro_batch = 8
max_staleness = 1
checkpoint_every = 8
optimizer = {{learning_rate = 3e-3}}
[evaluation]
tasks = "heldout.jsonl"
temperatures = [1.0]
workers = 1
[promotion]
tasks = "gate.jsonl"
"""
REWARD = """
def called(task, messages):
    return float(any(m.role == "tool" and m.content.isdigit() for m in messages))
"""
PARAMETERS = {"name": "calculator", "description": CalculatorTool.description, "parameters": CalculatorTool.parameters}


def checkpoint(folder: Path, family: str, chat: str) -> dict[str, Any]:
    """Write a Hugging Face folder with random weights that can learn; returns its `config.json`."""
    tokenizer = tokenizer_of(chat)
    ids = {"eos_token_id": chat_format(tokenizer, []).stop_ids[0], "vocab_size": tokenizer.vocab_size}
    described = json.loads((FAMILIES / family / "config.json").read_text()) | SIZES | OWN[family] | ids
    config = DecoderConfig.from_hf(described)
    folder.mkdir()
    params = jax.tree.map(np.asarray, init_params(config, seed=0))
    for name, data in (to_files(config, params) | tokenizer.to_files()).items():
        (folder / name).write_bytes(data)
    return described


def lay_out(folder: Path, api: str) -> Project:
    """The small project with problems for the calculator; no problem stands in two files."""
    made = real_run.lay_out(folder, api)
    (folder / "small.toml").write_text(CONFIG)
    (folder / "reward.py").write_text(REWARD)
    problems = [(f"{a}+{b}", str(a + b)) for a in range(1, 20) for b in range(1, 20)]
    random.Random(0).shuffle(problems)
    tasks = [{"id": text, "prompt": f"{text}=?", "answer": answer} for text, answer in problems]
    for name, end in (("train", 64), ("heldout", 96), ("gate", 144)):
        write(folder / f"{name}.jsonl", tasks[end - {"train": 64, "heldout": 32, "gate": 48}[name] : end])
    write(folder / "demos.jsonl", [demonstration(*problem, i % 2 == 0) for i, problem in enumerate(problems[144:])])
    return made


def demonstration(problem: str, answer: str, calls: bool) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": problem}}}
    worked = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "calculator", "content": answer},
        {"role": "assistant", "content": answer},
    ]
    said = worked if calls else [{"role": "assistant", "content": "?"}]
    return {"messages": [{"role": "user", "content": f"{problem}=?"}, *said], "tools": [PARAMETERS]}


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("family", "chat", "format_"), CASES, ids=[case[0] for case in CASES])
def test_from_a_checkpoint_to_a_champion(
    prefect_server: str, tmp_path: Path, family: str, chat: str, format_: type
) -> None:
    project = lay_out(tmp_path, prefect_server)
    described = checkpoint(tmp_path / "model", family, chat)
    done = project.headrace("run", seconds=2400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"learner: step {STEPS}/{STEPS}" in done.stdout, done.stdout

    found = json.loads(project.headrace("status", "small", "--json").stdout)
    print(json.dumps(found["evaluations"], indent=1), json.dumps(found["rl"], indent=1), done.stdout)
    assert found["state"] == "finished" and found["rl"]["step"] == found["rl"]["policy_version"] == STEPS
    agreed(project)

    out = tmp_path / "out"
    exported = project.headrace("export", "small:production", "--out", str(out))
    assert exported.returncode == 0 and "small@" in exported.stdout, exported.stdout + exported.stderr
    config, params = load_folder(out)
    before_config, before = load_folder(tmp_path / "model")
    assert json.loads((out / "config.json").read_text()) == described and config == before_config
    old, new = flatten(before), flatten(params)
    assert old.keys() == new.keys() and all((old[name] != new[name]).any() for name in old)
    names = [path.name for path in out.iterdir()]
    tokenizer = tokenizer_from_files(lambda name: (out / name).read_bytes(), names, "out")
    assert isinstance(chat_format(tokenizer, []), format_)
    assert (out / "tokenizer.json").read_bytes() == (CHATS / chat / "tokenizer.json").read_bytes()


def agreed(project: Project) -> None:
    """The audit is content, an independent recount agrees, and every row that was to be trained was."""
    verified = json.loads(project.headrace("audit", "verify", "small", "--json").stdout)
    counted = recount(project.root, "small")
    trained = counted.pop("trained")
    assert verified["ok"] and counted == {name: verified[name] for name in counted}
    assert len(trained) == verified["dispositions"]["trained"] > 0
