"""Every wrong request to the command: one clear sentence, exit code 2, nothing written, nothing loaded.

Requests are made in this process; what only a process of its own can show is asked of the installed command.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save
from tokenizers import Tokenizer
from tokenizers.models import BPE

from flows.cli import main
from models.config import DecoderConfig
from models.pure import init_params
from models.tokenizer import ByteTokenizer
from models.weights import to_files
from tasks import record
from tasks.request import load as load_request

COMMAND = Path(sys.executable).with_name("headrace")
HEAVY = ("prefect", "jax", "flax", "optax")
SHAPE = DecoderConfig(
    vocab_size=263, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, head_dim=4, max_position_embeddings=32,
)  # fmt: skip
PLAIN = Tokenizer(BPE({"a": 0, "b": 1}, []))
Tensors = dict[str, np.ndarray | None]
TOOLS = """
from rollout.tools import BaseTool

class One(BaseTool):
    name = "look_up"

class Two(BaseTool):
    name = "look_up"
"""


@dataclass(frozen=True)
class Said:
    """How a command ended and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


Headrace = Callable[..., Said]


@pytest.fixture
def headrace(capsys: pytest.CaptureFixture[str]) -> Headrace:
    """A command in this process."""

    def run(*argv: str) -> Said:
        capsys.readouterr()
        code = main(list(argv))
        return Said(code, *capsys.readouterr())

    return run


def installed(*argv: str, **environment: str) -> Said:
    """The installed command in a process of its own."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "HEADRACE_ROOT")} | environment
    done = subprocess.run([COMMAND, *argv], capture_output=True, text=True, env=env, check=False, timeout=120)
    return Said(done.returncode, done.stdout, done.stderr)


def refused(found: Said, *words: str) -> None:
    """One sentence on standard error that says these words; exit code 2."""
    assert found.returncode == 2, found
    assert found.stderr.startswith("headrace: ") and found.stderr.count("\n") == 1, found.stderr
    assert "Traceback" not in found.stderr and not found.stdout
    for word in words:
        assert word in found.stderr


def run(project: Path, root: str, *overrides: str) -> list[str]:
    """The words of `headrace run` with these settings."""
    settings = [word for override in overrides for word in ("--set", override)]
    return ["run", str(project / "small.toml"), "--root", root, *settings]


def untouched(root: str) -> bool:
    return not [p for p in Path(root).rglob("*") if p.is_file()]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rl.max_stalenes=1", ("rl.max_stalenes", "did you mean", "max_staleness")),
        ("warm_up.0.data=nowhere.jsonl", ("nowhere.jsonl", "does not exist")),
        ("rl.max_staleness=-1", ("rl.max_staleness", "-1")),
        ("model.path=small@3", ("small",)),
        ('environment.tools=["twins:One", "twins:Two"]', ("`look_up`", "twice")),
    ],
)
def test_a_wrong_setting(headrace: Headrace, project: Path, root: str, override: str, words: tuple[str, ...]) -> None:
    (project / "twins.py").write_text(TOOLS)
    refused(headrace(*run(project, root, override)), *words)
    assert untouched(root)


def test_the_installed_command_says_it_too(project: Path, root: str) -> None:
    refused(installed(*run(project, root, "rl.max_stalenes=1")), "rl.max_stalenes", "did you mean", "max_staleness")
    assert untouched(root)


def test_an_unknown_key_in_the_file(headrace: Headrace, project: Path, root: str) -> None:
    text = (project / "small.toml").read_text().replace("[rollout]", "[rollout]\nworker = 2")
    (project / "small.toml").write_text(text)
    refused(headrace(*run(project, root)), "small.toml", "rollout.worker", "did you mean", "workers")


def test_a_demonstration_without_messages(headrace: Headrace, project: Path, root: str) -> None:
    with (project / "demos.jsonl").open("a") as file:
        file.write('{"prompt": "1+1"}\n')
    refused(headrace(*run(project, root)), "demos.jsonl line 2", "messages")
    assert untouched(root)


def test_a_demonstration_that_is_too_long(headrace: Headrace, project: Path, root: str) -> None:
    """Before anything starts: a later stage would else refuse it when the earlier ones are done."""
    shown = {"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2" * 300}]}
    with (project / "demos.jsonl").open("a") as file:
        file.write(json.dumps(shown) + "\n")
    refused(headrace(*run(project, root)), "demos.jsonl line 2", "307 tokens")
    assert untouched(root)


@pytest.mark.parametrize("place", ["small.toml/below", "/proc/nowhere"])
def test_a_root_that_cannot_be_written(headrace: Headrace, project: Path, place: str) -> None:
    refused(headrace(*run(project, str(project / place))), place)


def test_a_run_of_another_schema_version(headrace: Headrace, project: Path, root: str) -> None:
    request = load_request(str(project / "small.toml"), root=root)
    record.save(request.store, record.prepare(request).model_copy(update={"schema_version": 99}))
    refused(headrace(*run(project, root)), "schema version 99", "runs/small/run.json")
    refused(headrace("status", "small", "--root", root), "schema version 99")


def test_a_checkpoint_that_does_not_exist(headrace: Headrace, project: Path, root: str) -> None:
    request = load_request(str(project / "small.toml"), root=root)
    record.save(request.store, record.prepare(request))
    refused(headrace(*run(project, root, "name=other", "model.path=small@3")), "small")
    for command in (("eval",), ("promote",), ("audit", "checkpoint")):
        refused(headrace(*command, "small@3", "--root", root), "small")


def weights(project: Path, **changes: bytes | Tensors) -> Path:
    """A folder of weights beside the configuration, with other files or other tensors."""
    folder = project / "weights"
    folder.mkdir()
    tensors = changes.pop("tensors", {})
    for name, data in (to_files(SHAPE, init_params(SHAPE, 0)) | ByteTokenizer().to_files() | changes).items():
        if name == "model.safetensors" and isinstance(tensors, dict):
            held = load(data) | tensors  # type: ignore[arg-type]
            data = save({key: value for key, value in held.items() if value is not None})
        (folder / name).write_bytes(data)  # type: ignore[arg-type]
    return folder


def config_json(**changes: object) -> bytes:
    return json.dumps(SHAPE.to_hf() | changes).encode()


UP = "model.layers.0.mlp.up_proj.weight"
WRONG_WEIGHTS = {
    "architecture": (
        {"config.json": config_json(architectures=["MambaForCausalLM"])},
        ("weights", "MambaForCausalLM", "not supported", "LlamaForCausalLM", "Gemma3ForCausalLM"),
    ),
    "missing tensor": ({"tensors": {UP: None}}, ("weights/model.safetensors", "lacks the tensor", UP)),
    "misshapen tensor": (
        {"tensors": {UP: np.zeros((3, 8), np.float32)}},
        ("weights/model.safetensors", UP, "[3, 8]", "[8, 8]"),
    ),
    "tokenizer": (
        {"config.json": config_json(vocab_size=100)}
        | {"tensors": {"model.embed_tokens.weight": np.zeros((100, 8), np.float32)}},
        ("weights: ", "ids up to 262", "vocab_size = 100"),
    ),
    "chat format": (
        {"headrace_tokenizer.json": None, "tokenizer.json": PLAIN.to_str().encode()},
        ("weights: ", "no chat format", "<|im_start|>", "<start_of_turn>"),
    ),
}


@pytest.mark.parametrize("command", ["validate", "run"])
@pytest.mark.parametrize("case", WRONG_WEIGHTS)
def test_weights_that_are_wrong(headrace: Headrace, project: Path, root: str, case: str, command: str) -> None:
    changes, words = WRONG_WEIGHTS[case]
    folder = weights(project, **{name: value for name, value in changes.items() if value is not None})
    for name in [name for name, value in changes.items() if value is None]:
        (folder / name).unlink()
    settings = ("--set", "model.path=weights", "--set", "rollout.max_length=32", "--set", "warm_up.0.max_length=32")
    refused(headrace(command, str(project / "small.toml"), "--root", root, *settings), *words)
    assert untouched(root)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rollout.max_length=600", ("rollout.max_length is 600", "at most 512 tokens")),
        ("warm_up.0.max_length=600", ("warm-up `habit`", "600", "at most 512 tokens")),
        ("rollout.max_length=11", ("rl.tasks (train.jsonl)", "`train-0`", "has 11 tokens", "rollout.max_length = 11")),
        ('environment.system_prompt="Answer."', ("`train-0`", "has 20 tokens", "rollout.max_length = 16")),
    ],
)
def test_a_prompt_that_does_not_fit(
    headrace: Headrace, project: Path, root: str, override: str, words: tuple[str, ...]
) -> None:
    settings = ("--set", "rollout.max_length=16", "--set", override)
    refused(headrace("validate", str(project / "small.toml"), "--root", root, *settings), *words)


def test_a_run_with_a_prompt_that_does_not_fit(headrace: Headrace, project: Path, root: str) -> None:
    refused(
        headrace(*run(project, root, "rollout.max_length=11")), "`train-0`", "has 11 tokens", "rollout.max_length = 11"
    )
    assert untouched(root)


@pytest.mark.parametrize("name", ["tasks.py", "flows/__init__.py", "schemas/__init__.py", "trainer.py"])
def test_a_package_of_the_user_s_that_shadows_a_room(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("raise SystemExit('the wrong one')")
    refused(installed("--help", PYTHONPATH=str(tmp_path)), f"`{name.partition('/')[0].removesuffix('.py')}`", name)


def test_a_package_in_the_working_folder_shadows_nothing(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("raise SystemExit('the wrong one')")
    done = subprocess.run([COMMAND, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_loads_nothing_heavy() -> None:
    done = installed("--help", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0 and "usage: headrace" in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "flows.cli" in loaded and not loaded & {*HEAVY, "pyarrow", "pydantic", "numpy", "rich"}
