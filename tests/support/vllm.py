"""Engines on servers: fake vLLM ones in this process, or a real one of vLLM or SGLang, where its interpreter is."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from models.config import DecoderConfig
from models.pure import init_params
from rollout.sglang_server import SglangServer
from rollout.vllm_engine import VllmEngine
from rollout.vllm_server import VllmServer, interpreter
from rollout.vllm_weights import WeightsFolder
from schemas.config import SglangServers, VllmServers
from support.engines import CONTEXT, POLICIES, text
from support.fake_vllm import FakeVllm
from support.tiny import TINY, lively

SERVED = DecoderConfig(37, 64, 96, 2, 2, 1, 32, 256)
"""As tiny as vLLM takes a model on a CPU, where heads have 32 dimensions at least."""
SERVED_POLICIES = [lively(init_params(SERVED, seed=0), seed=s) for s in (1, 2)]

WIDE = DecoderConfig(37, 128, 96, 2, 2, 1, 128, 256)
"""As tiny as SGLang takes one there: its heads have a multiple of 128 dimensions."""
WIDE_POLICIES = [lively(init_params(WIDE, seed=0), seed=s) for s in (1, 2)]


class Letters:
    """The tokenizer of the tiny models: a letter per token."""

    def __init__(self, vocab_size=TINY.vocab_size):
        self.vocab_size = vocab_size
        self.decode = text


def engine_at(*urls, config=TINY, policies=POLICIES, version=0, slots=4, tokenizer=None, kind=VllmServers, **settings):
    params = policies[version] if version >= 0 else None
    settings = kind(urls=urls, **settings)
    tokenizer = tokenizer or Letters(config.vocab_size)
    return VllmEngine(config, params, tokenizer, settings, version=version, slots=slots, max_length=CONTEXT)


class OnAFake(VllmEngine):
    """An engine on a fake server of its own, which starts and ends with it."""

    def __init__(self, version):
        self.fake = FakeVllm(TINY, POLICIES[0])
        params = POLICIES[version] if version >= 0 else None
        settings = VllmServers(urls=(self.fake.url,))
        super().__init__(TINY, params, Letters(), settings, version=version, slots=4, max_length=CONTEXT)

    async def start(self):
        await self.fake.start()
        await super().start()

    async def close(self):
        await super().close()
        await self.fake.stop()


def python_with_vllm():
    """The interpreter for real servers; the test is skipped where there is none."""
    return _python_with(VllmServers)


def python_with_sglang():
    """Likewise, for SGLang's."""
    return _python_with(SglangServers)


def _python_with(kind):
    variable, made = f"HEADRACE_{kind.label.upper()}_PYTHON", f".venv-{kind.label.lower()}/bin/python"
    named = os.environ.get(variable) or str(Path(__file__).parents[2] / made)
    if not Path(named).exists():
        pytest.skip(f"no {kind.label}: neither {variable} nor {made} (`make {kind.label.lower()}-env`) is there")
    return interpreter(kind(python=named))


def elsewhere(work):
    """The result of a coroutine on a loop of its own, for fixtures that outlive a test's loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


class RealServer:
    """A server of this machine, vLLM's or SGLang's, from construction to `stop`."""

    def __init__(self, config, params, *arguments, python=None, context=CONTEXT, slots=4, kind=VllmServers):
        settings = kind(python=str(python or _python_with(kind)), arguments=arguments)
        self._weights = WeightsFolder("", config)
        process = VllmServer if kind is VllmServers else SglangServer
        self._server = process(Path(settings.python), settings, self._weights.path, context, slots)
        self.url = elsewhere(self._start(params))

    async def _start(self, params):
        client = await self._server.start(self._weights.write(params, 0))
        await client.close()
        return client.url

    def stop(self):
        elsewhere(self._server.stop())
        self._weights.remove()
