"""Servers of the worker's own, with scripts in vLLM's place: they end with whoever started them, and say why."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.engines import POLICIES
from support.tiny import TINY
from support.vllm import Letters

from rollout import vllm_guard
from rollout.vllm_engine import VllmEngine
from rollout.vllm_server import VllmServer, interpreter
from schemas.config import VllmServers
from schemas.errors import RequestError, RunStopped

PARENT = """
import subprocess, sys, time
guard = subprocess.Popen([sys.executable, {guard!r}, {folder!r}, "sh", "-c", {script!r}], stdin=subprocess.PIPE)
{then}
"""
SERVER = "sleep 1000 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait"


def script(folder: Path, text: str) -> Path:
    """An executable that stands in for an interpreter with vLLM."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def engine(settings: VllmServers) -> VllmEngine:
    return VllmEngine(TINY, POLICIES[0], Letters(), settings, version=0)


@pytest.mark.parametrize("how", ["killed", "said so", "closed"])
def test_the_server_and_its_children_end_with_the_parent_however_it_ends(tmp_path: Path, how: str) -> None:
    pids, folder = tmp_path / "pids", tmp_path / "weights"
    folder.mkdir()
    then = {"killed": "time.sleep(1000)", "said so": "guard.stdin.write(b'end')", "closed": ""}[how]
    text = PARENT.format(
        guard=vllm_guard.__file__, folder=str(folder), script=SERVER.format(pids=pids),
        then=f"while not __import__('os').path.exists({str(pids)!r}): time.sleep(0.01)\n{then}",
    )  # fmt: skip
    parent = subprocess.Popen([sys.executable, "-c", text])
    until(pids.exists)
    servers = [int(p) for p in pids.read_text().split()]
    if how == "killed":
        assert all(lives(p) for p in servers)
        parent.send_signal(signal.SIGKILL)
    parent.wait(60)
    until(lambda: not any(lives(p) for p in servers))
    if how == "said so":
        assert folder.exists(), "the parent goes on and still needs it"
    else:
        until(lambda: not folder.exists())


async def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    log = (
        "echo 'ValueError: head_dim 6 is not supported by anything' >&2;"
        "echo 'RuntimeError: Engine core initialization failed. See root cause above.' >&2; exit 1"
    )
    made = engine(VllmServers(python=str(script(tmp_path, log))))
    with pytest.raises(RunStopped, match="vLLM can't serve this model: ValueError: head_dim 6 is not supported"):
        await made.start()
    await made.close()


async def test_a_server_that_never_answers_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    made = engine(VllmServers(python=str(script(tmp_path, f"echo $$ > {pid}; exec sleep 1000")), start_seconds=1.0))
    with pytest.raises(RunStopped, match=r"vLLM did not answer within rollout\.vllm\.start_seconds = 1"):
        await made.start()
    await made.close()
    assert not lives(int(pid.read_text()))


async def test_what_the_server_is_told(tmp_path: Path) -> None:
    told = tmp_path / "told"
    python = script(tmp_path, f'echo "$@" > {told}; env >> {told}; exit 1')
    server = VllmServer(python, VllmServers(arguments=("--enable-lora",)), tmp_path, 64, 5)
    with pytest.raises(RunStopped, match="it ended without a word"):
        await server.start(tmp_path / "policy")
    text = told.read_text()
    wanted = ("--model " + str(tmp_path / "policy"), "--max-model-len 64", "--max-num-seqs 5", "--enable-lora")
    assert all(part in text for part in (*wanted, "VLLM_SERVER_DEV_MODE=1", "vllm_site"))
    (path,) = (line for line in text.splitlines() if line.startswith("PYTHONPATH="))
    assert path.endswith("/rollout/vllm_site"), "names of our rooms would shadow others"


async def test_a_server_for_adapters_takes_their_rank(tmp_path: Path) -> None:
    told = tmp_path / "told"
    server = VllmServer(Path(script(tmp_path, f'echo "$@" > {told}; exit 1')), VllmServers(), tmp_path, 64, 5)
    with pytest.raises(RunStopped, match="it ended without a word"):
        await server.start(tmp_path / "policy", rank=9)
    assert "--enable-lora" in told.read_text() and "--max-lora-rank 16" in told.read_text()


def test_a_missing_interpreter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_VLLM_PYTHON", raising=False)
    with pytest.raises(RequestError, match=rf"there is no Python at {tmp_path}/none to run vLLM with: run `make vllm"):
        interpreter(VllmServers(python=f"{tmp_path}/none"))
    monkeypatch.setenv("HEADRACE_VLLM_PYTHON", sys.executable)
    assert interpreter(VllmServers()) == Path(sys.executable)


async def test_closing_ends_a_start(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    made = engine(VllmServers(python=str(script(tmp_path, f"echo $$ > {pid}; exec sleep 1000"))))
    starting = asyncio.ensure_future(made.start())
    async with asyncio.timeout(60):
        while not pid.exists() or not pid.read_text():
            await asyncio.sleep(0.01)
    starting.cancel()
    await asyncio.wait({starting})
    await made.close()
    assert not lives(int(pid.read_text()))
