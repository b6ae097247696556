"""vLLM servers behind URLs as the commands meet them: what is of no use is named in one sentence."""

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_vllm import FakeVllm
from support.projects import project, root

from flows.cli import main
from models.config import DecoderConfig
from models.pure import init_params
from models.tokenizer import ByteTokenizer
from models.weights import to_files

__all__ = ["project", "root"]

SHAPE = DecoderConfig(
    vocab_size=263, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, head_dim=4, max_position_embeddings=512,
)  # fmt: skip
OTHER = dataclasses.replace(SHAPE, hidden_size=16)
BEYOND = {"token_ids": [400], "logprobs": {"content": [{"logprob": -1.0}]}}


class CannedVllm(FakeVllm):
    """Answers every request for tokens alike, without a model."""

    def __init__(self, config: DecoderConfig, choice: dict[str, Any]) -> None:
        super().__init__(config, None, context=256)
        self._choice = choice

    async def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        spans = [{"version": self._names[self._generation], "start": 0, "end": 1}]
        return {"choices": [self._choice | {"weight_versions": spans}]}


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread, for servers beside a command that runs here."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


def serve(loop: asyncio.AbstractEventLoop, config: DecoderConfig = SHAPE, choice: dict[str, Any] | None = None) -> str:
    fake = CannedVllm(config, BEYOND if choice is None else choice)
    asyncio.run_coroutine_threadsafe(fake.start(), loop).result(60)
    return fake.url


def command(name: str, project: Path, root: str, url: str, *more: str) -> int:
    (project / "weights").mkdir()
    for file, data in (to_files(SHAPE, init_params(SHAPE, 0)) | ByteTokenizer().to_files()).items():
        (project / "weights" / file).write_bytes(data)
    settings = (
        f'rollout.vllm.urls=["{url}"]', "rollout.engine=vllm", "rollout.workers=1", "evaluation.workers=1",
        "model.path=weights", *more,
    )  # fmt: skip
    set_to = [word for setting in settings for word in ("--set", setting)]
    return main([name, str(project / "small.toml"), "--root", root, *set_to])


@pytest.mark.parametrize("name", ["validate", "run", "rollout"])
def test_a_server_of_another_model_is_refused_before_work(
    project: Path, root: str, loop: asyncio.AbstractEventLoop, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = serve(loop, OTHER)
    assert command(name, project, root, url) == 2
    assert capsys.readouterr().err == (
        f"headrace: the server at {url} serves another model: its hidden_size is 16, and that of this run's model is "
        f"8; start it on this run's weights, or correct rollout.vllm.urls\n"
    )
    assert not (Path(root) / "runs").exists()


def test_a_server_that_is_not_there_is_refused_before_work(
    project: Path, root: str, loop: asyncio.AbstractEventLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("run", project, root, "http://127.0.0.1:9") == 2
    err = capsys.readouterr().err
    assert err == "headrace: no vLLM answers at http://127.0.0.1:9: start it, or correct rollout.vllm.urls\n"


def test_a_server_that_sees_fewer_tokens_is_refused_before_work(
    project: Path, root: str, loop: asyncio.AbstractEventLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("validate", project, root, serve(loop), "rollout.max_length=257") == 2
    assert "has a context of 256 tokens, less than rollout.max_length = 257" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (BEYOND, "sampled token 400, but the tokenizer has 263: it serves another model, or lets padding be sampled"),
        (
            {"text": "7"},
            "lack what they should tell (KeyError: 'token_ids'): start a version that docs/engines.md names",
        ),
    ],
    ids=["ids beyond the tokenizer", "another form"],
)
def test_a_server_whose_answers_are_of_no_use_stops_the_command(
    project: Path,
    root: str,
    loop: asyncio.AbstractEventLoop,
    choice: dict[str, Any],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command("rollout", project, root, serve(loop, choice=choice), "rollout.max_length=256") == 1
    found = capsys.readouterr()
    assert message in found.err and found.err.count("\n") == 1 and not found.out
