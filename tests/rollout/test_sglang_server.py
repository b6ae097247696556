"""SGLang servers without SGLang: what is started, in which environment, and what is said where there is none."""

from pathlib import Path

import pytest
from support.vllm import WIDE, Letters

from rollout.sglang_server import SITE, SglangServer
from rollout.vllm_engine import VllmEngine
from schemas.config import SglangServers
from schemas.errors import RequestError, RunStopped


def interpreter(folder, script):
    """An executable that stands for a Python with SGLang."""
    made = folder / "python"
    made.write_text(f"#!/bin/sh\n{script}\n")
    made.chmod(0o755)
    return str(made)


def engine(folder, **settings):
    settings = SglangServers(folder=str(folder / "scratch"), **settings)
    return VllmEngine(WIDE, {}, Letters(WIDE.vocab_size), settings, version=0, slots=4, max_length=64)


async def test_a_server_is_started_without_the_workers_import_path_and_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    python = interpreter(tmp_path, f'echo "$@" > {tmp_path}/asked; echo "$PYTHONPATH:$XLA_FLAGS" >> {tmp_path}/asked')
    settings = SglangServers(python=python, arguments=("--device", "tpu"))
    server = SglangServer(Path(python), settings, tmp_path, 64, 4)
    with pytest.raises(RunStopped, match=r"SGLang can't serve this model: it ended without a word"):
        await server.start(tmp_path / "weights")
    asked, path = (tmp_path / "asked").read_text().splitlines()
    assert asked.startswith(f"-P {SITE / 'headrace_sglang.py'} --model {tmp_path / 'weights'} --port ")
    assert asked.endswith("--dtype float32 --max-model-len 64 --max-num-seqs 4 --device tpu")
    assert path == f"{SITE}:"
    await server.stop()


async def test_the_cause_of_a_server_that_ends_is_told(tmp_path, monkeypatch):
    script = 'echo "ValueError: dot_general requires contracting dimensions to have the same shape" >&2; exit 1'
    monkeypatch.setattr("rollout.vllm_weights.to_files", lambda *_: {})
    made = engine(tmp_path, python=interpreter(tmp_path, script))
    with pytest.raises(RunStopped, match="SGLang can't serve this model: ValueError: dot_general requires"):
        await made.start()
    await made.close()


def test_an_interpreter_that_is_not_there_is_named(tmp_path):
    with pytest.raises(
        RequestError, match=r"to run SGLang with: run `make sglang-env`, set rollout\.sglang\.python or"
    ):
        engine(tmp_path, python=str(tmp_path / "none"))
