"""A vLLM server without vLLM: its endpoints over HTTP in this process, the JAX engine behind them, faults on order."""

import asyncio
import json
import socket
from pathlib import Path

from aiohttp import web
from safetensors.numpy import load

from models.pure import flatten, nest
from models.weights import load_folder
from rollout.engine import Request, Sampling
from rollout.jax_engine import JaxEngine


class FakeVllm:
    """Serves at `url` from `start` on. What can go wrong is set in its attributes."""

    def __init__(self, config, params, *, context=128, slots=4):
        self._made = config, params, context, slots
        self._runner = self._begun = self._engine = None
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self._port = found.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.asked = 0
        self.running = 0
        self.most = 0
        """Requests that were running at once, at most."""
        self.loads = 0
        self.bodies = []
        self.statuses = []
        """Statuses to answer the next requests for tokens with."""
        self.seconds = 0.0
        self.answers_after = 0
        """Updates of weights that must have come before a request is answered."""
        self.healthy = True
        self.extension = True
        self.ignores_updates = False
        self.keeps_the_head = False
        self.keeps_no_versions = False
        self.adds = 0
        """Added to every sampled token."""
        self.dies_at = 0
        """The request for tokens, counted from 1, at which the server goes away."""
        self.rank = 0
        """The highest rank of adapters that it takes; 0: none."""
        self.adapts = 0
        self.ignores_adapters = False
        self.drops = 0
        """How many of the next updates of weights break the connection."""

    async def start(self):
        """Begin to serve, if it does not; again with the first weights, as a server that was started anew."""
        if self._begun is None:
            self._begun = asyncio.ensure_future(self._start())
        await asyncio.shield(self._begun)  # whoever asked first may be cancelled; the others still wait for it

    async def _start(self):
        config, params, context, _ = self._made
        self._config, self._context = config, context
        self._names, self._generation, self._params = {0: "default"}, 0, params
        self._base, self._adapters, self._held, self._added = params, {}, set(), 0
        self.healthy = True
        self._going = asyncio.Event()
        self._going.set()
        app = web.Application(client_max_size=2**28)
        for method, path, handler in (
            ("GET", "/health", self._health), ("GET", "/v1/models", self._models),
            ("POST", "/inference/v1/generate", self._generate), ("POST", "/collective_rpc", self._rpc),
            ("POST", "/pause", self._pause), ("POST", "/resume", self._resume),
            ("POST", "/v1/load_lora_adapter", self._register), ("POST", "/update_weight_version", self._called),
            ("POST", "/reset_prefix_cache", self._reset),
        ):  # fmt: skip
            app.router.add_route(method, path, handler)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port, reuse_address=True).start()
        self._runner = runner

    async def stop(self):
        """Go away; open connections break."""
        runner, self._runner = self._runner, None
        self._begun = None
        if runner is not None:
            await runner.cleanup()
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.close()

    async def _samples(self):
        """The engine with the newest weights; made when it is first needed, since it compiles."""
        config, _, context, slots = self._made
        if self._engine is None:
            self._engine = JaxEngine(
                config, self._params, version=self._generation, slots=slots, max_length=context, decode_steps=2
            )
        elif self._engine.version != self._generation:
            await self._engine.update_weights(self._params, self._generation)
        return self._engine

    async def _health(self, _):
        return web.Response(status=200 if self.healthy else 503)

    async def _models(self, _):
        names = ("headrace", *self._adapters)
        return web.json_response({"data": [{"id": name, "max_model_len": self._context} for name in names]})

    async def _generate(self, request):
        self.asked += 1
        body = json.loads(await request.read())
        self.bodies.append(body)
        if self.asked == self.dies_at:
            request.transport.abort()
            self._stopping = asyncio.ensure_future(self.stop())
            raise asyncio.CancelledError
        if self.statuses:
            return web.json_response({"error": {"message": "as ordered"}}, status=self.statuses.pop(0))
        if body.get("model", "headrace") not in ("headrace", *self._adapters):
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.seconds)
            while self._generation < self.answers_after:
                await asyncio.sleep(0.005)
            await self._going.wait()
            return web.json_response(await self._answer(body))
        finally:
            self.running -= 1

    async def _answer(self, body):
        asked, tokens = body["sampling_params"], tuple(body["token_ids"])
        engine = await self._samples()
        found = None
        if "prompt_logprobs" in asked:
            (logprobs,) = (await engine.score(tokens)).values()
            pairs = zip(tokens[1:], logprobs, strict=True)
            found = [None, *[{str(t): {"logprob": p}} for t, p in pairs]]
        sampling = Sampling(
            asked["max_tokens"], asked["temperature"], tuple(asked.get("stop_token_ids", ())),
            top_p=asked.get("top_p", 1.0), top_k=asked.get("top_k", 0),
        )  # fmt: skip
        session = f"fake-{self.asked}"
        done = await engine.generate(Request(session, tokens, sampling, asked.get("seed", 0)))
        engine.release(session)
        return {
            "prompt_logprobs": found,
            "usage": {"prompt_tokens_details": {"cached_tokens": 0}},
            "choices": [
                {
                    "token_ids": [t + self.adds for t in done.token_ids],
                    "logprobs": {"content": [{"logprob": p} for p in done.logprobs]},
                    "weight_versions": [] if self.keeps_no_versions else self._spans(done.versions),
                }
            ],
        }

    def _spans(self, generations):
        """The engine counts updates; servers tell what they were called."""
        return [{"version": self._names[g], "start": i, "end": i + 1} for i, g in enumerate(generations)]

    async def _rpc(self, request):
        body = json.loads(await request.read())
        if not self.extension:
            message = "'CPUWorker' object has no attribute 'headrace_describe'"
            return web.json_response({"error": {"message": message}}, status=500)
        if body["method"] == "headrace_describe":
            model = {key: self._config.to_hf().get(key) for key in ("hidden_size", "vocab_size", "model_type")}
            told = {"vllm": "fake", "model": model, "rank": self.rank, "adapters": list(self._held)}
            return web.json_response({"results": [told]})
        if self.drops:
            self.drops -= 1
            request.transport.abort()
            raise asyncio.CancelledError
        if body["method"] == "headrace_adapt":
            return web.json_response({"results": [self._adapt(*body["args"])]})
        return web.json_response({"results": [await self._load(Path(body["args"][0]))]})

    async def _register(self, request):
        body = json.loads(await request.read())
        if not self.rank:
            return web.json_response({"detail": "Not Found"}, status=404)
        self._added += 1
        self._adapters, self._held = {body["lora_name"]: self._added}, {self._added}
        return web.Response(text="Success")

    def _adapt(self, number, folder):
        self._held = {int(number)}
        self.adapts += 1
        described = json.loads((Path(folder) / "adapter_config.json").read_text())
        if described["r"] > self.rank:
            return {"refused": f"LoRA rank {described['r']} is greater than max_lora_rank {self.rank}."}
        tensors = load((Path(folder) / "adapter_model.safetensors").read_bytes())
        scale, flat = described["lora_alpha"] / described["r"], flatten(self._base)
        for module in described["target_modules"]:
            a, b = (tensors[f"base_model.model.{module}.lora_{part}.weight"] for part in "AB")
            flat[f"{module}.weight"] = flat[f"{module}.weight"] + scale * b @ a
        self._params = self._params if self.ignores_adapters else nest(flat)
        return {}

    async def _load(self, folder):
        self.loads += 1
        self._held = set()  # as vLLM does, which still knows their name
        config, params = load_folder(folder)
        if config.hidden_size != self._config.hidden_size:
            return {"refused": f"it serves a model of hidden_size {self._config.hidden_size}"}
        if not self._config.tie_word_embeddings:
            params = params | {"lm_head": params["model"]["embed_tokens"]}
        if self.keeps_the_head:
            params = params | {"lm_head": self._params["lm_head"]}
        self._params = self._base = self._params if self.ignores_updates else params
        return {}

    async def _called(self, request):
        self._generation += 1
        self._names[self._generation] = json.loads(await request.read())["new_version"]
        if self._engine is not None:
            await self._samples()
        return web.json_response({"success": True})

    async def _pause(self, _):
        self._going.clear()
        return web.json_response({"status": "paused"})

    async def _resume(self, _):
        self._going.set()
        return web.json_response({"status": "resumed"})

    async def _reset(self, _):
        return web.json_response({"success": True})
