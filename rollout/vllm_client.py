"""One vLLM server over HTTP, or an SGLang one that speaks as vLLM does: what is asked, and what refusals mean.

Tokens go in and come out by `/inference/v1/generate`, which tells the weights that sampled each token. A server that is
too busy (429, 503) is asked again until the caller's deadline; all else is the caller's to decide.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from rollout.engine import EngineUnfit
from schemas.errors import RequestError, RunStopped

CONNECT_SECONDS = 10.0
BUSY_SECONDS = (0.1, 5.0)
"""First and longest pause before a busy server is asked again."""
UNNAMED = "default"
"""What vLLM calls the weights that it was started with, until it is told another name."""


class ServerGone(Exception):
    """The server does not answer any more, says itself that it can't go on, or has lost its weights by a restart."""


class ServerFailed(Exception):
    """The server lives, but failed at this request (5xx)."""


class Refused(Exception):
    """The server will not do this (4xx): asking again is no use."""


class Unknown(Refused):
    """The server does not know what is asked for (404)."""


@dataclass(frozen=True)
class Sampled:
    """What a server sampled, N tokens."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """[N] of the raw logits."""
    versions: tuple[int, ...]
    """[N]"""
    cached: int
    """Tokens of the prompt that were found in the server's prefix cache."""


class VllmClient:
    """Speaks to the server at `url`. Every call may raise `ServerGone`, `ServerFailed` or `Refused`.

    `owner` goes into the names of weights, so that those that somebody else gave the server are noticed.
    """

    def __init__(self, url: str, owner: str = "", label: str = "vLLM") -> None:
        self.url, self.label, self._owner = url.rstrip("/"), label, owner
        self.title = f"{label} at {self.url}"
        self._adapter: int | None = None
        """The number by which the server's worker knows this owner's adapters, once it has any."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        self._http = httpx.AsyncClient(base_url=self.url, timeout=timeout, limits=limits, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def healthy(self) -> bool:
        try:
            answer = await self._http.get("/health", timeout=CONNECT_SECONDS)
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    async def sample(self, token_ids: Sequence[int], sampling: dict[str, Any]) -> Sampled:
        """Sample one continuation. Cancelling closes the connection, upon which the server ends the request."""
        wanted = {"logprobs": 0, "ignore_eos": True, "detokenize": False}
        answer = await self._generate(token_ids, wanted | sampling)
        with self._reading():
            choice, usage = answer["choices"][0], answer.get("usage") or {}
            tokens = tuple(choice["token_ids"])
            logprobs = tuple(float(t["logprob"]) for t in (choice["logprobs"] or {"content": ()})["content"])
            details = usage.get("prompt_tokens_details") or {}
            versions = self._versions(choice)
        if len(logprobs) != len(tokens):
            raise EngineUnfit(f"{self.title} gave {len(logprobs)} log-probs for {len(tokens)} tokens")
        return Sampled(tokens, logprobs, versions, details.get("cached_tokens") or 0)

    async def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Log-probs of token_ids[1:] given what comes before."""
        answer = await self._generate(token_ids, {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0})
        with self._reading():
            self._versions(answer["choices"][0])
            found = answer["prompt_logprobs"][1:]
            return tuple(float(f[str(t)]["logprob"]) for f, t in zip(found, token_ids[1:], strict=True))

    async def describe(self) -> dict[str, Any]:
        """The model that is served, as its worker extension sees it, and the context that the server allows."""
        listed = await self._call("GET", "/v1/models")
        try:
            context = int(listed["data"][0]["max_model_len"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Refused(f"what it answers at /v1/models names no max_model_len: is it {self.label}?") from error
        try:
            held = (await self._rpc("headrace_describe"))[0]
        except (ServerFailed, Refused) as error:
            raise RequestError(
                f"the server at {self.url} lacks what weight updates need ({error}): start it as docs/engines.md says, "
                f"with VLLM_SERVER_DEV_MODE=1, --enable-scale-out and Headrace's worker extension"
            ) from error
        return held | {"context": context}

    async def load(self, folder: Path | None, version: int, adapter: Path | None = None) -> None:
        """Pause between two tokens, take over weights from `folder` and adapters from `adapter` as `version`, go on.

        Without `folder` the server's weights stay. What is running keeps its tokens; its keys and values are computed
        again with the new weights. RunStopped where the weights are not of the server's model.
        """
        await self._call("POST", "/pause", params={"mode": "keep"})
        told = await self._rpc("headrace_load", str(folder)) if folder else []
        refused = [worker["refused"] for worker in told if "refused" in worker]
        if adapter and not refused:
            refused = await self._adapt(adapter)
        if refused:
            await self._call("POST", "/resume")
            raise RunStopped(f"the server at {self.url} can't take policy {version}: {refused[0]}")
        await self.set_version(version)
        reset = {"reset_running_requests": "true"}
        if not (await self._call("POST", "/reset_prefix_cache", params=reset)).get("success"):
            raise RunStopped(f"{self.title} did not let go of keys and values of the policy before {version}")
        await self._call("POST", "/resume")

    async def _adapt(self, folder: Path) -> list[str]:
        """Have the adapters in `folder` take the place of those before, also for what is running; what is refused.

        The server is told of them by name once. vLLM's way of loading others under that name has it read them again at
        every step; under another name, running requests would go on with the old ones.
        """
        if self._adapter is None:
            before = await self._adapters()
            await self._name_adapters(folder)
            (self._adapter,) = await self._adapters() - before
        elif self._name not in await self._models():
            raise ServerGone("it was started again and does not know its adapters")
        told = await self._rpc("headrace_adapt", str(self._adapter), str(folder))
        return [worker["refused"] for worker in told if "refused" in worker]

    async def _name_adapters(self, folder: Path) -> None:
        try:
            await self._ask("POST", "/v1/load_lora_adapter", {"lora_name": self._name, "lora_path": str(folder)})
        except Refused as error:
            raise Refused(f"{error}; it needs VLLM_ALLOW_RUNTIME_LORA_UPDATING=1") from error

    @property
    def _name(self) -> str:
        return f"headrace-{self._owner}"

    async def _models(self) -> set[str]:
        """What requests may ask for: the weights and adapters by name."""
        listed = await self._call("GET", "/v1/models")
        with self._reading():
            return {str(model["id"]) for model in listed["data"]}

    async def _adapters(self) -> set[int]:
        """Those that the worker holds; whole weights take them all away."""
        return set((await self._rpc("headrace_describe"))[0]["adapters"])

    async def set_version(self, version: int) -> None:
        """What the weights in use are called from here on."""
        await self._call("POST", "/update_weight_version", {"new_version": f"{self._owner}:{version}"})

    async def _generate(self, token_ids: Sequence[int], sampling: dict[str, Any]) -> dict[str, Any]:
        body: dict[str, Any] = {"token_ids": list(token_ids), "sampling_params": sampling}
        if self._adapter is None:
            return await self._call("POST", "/inference/v1/generate", body)
        try:
            return await self._call("POST", "/inference/v1/generate", body | {"model": self._name})
        except Unknown as error:
            raise ServerGone(f"it was started again and has no adapters: {error}") from error

    async def _rpc(self, method: str, *arguments: str) -> list[dict[str, Any]]:
        answer = await self._call("POST", "/collective_rpc", {"method": method, "args": arguments})
        return answer["results"]

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, params: dict[str, str] | None = None
    ) -> Any:
        answer = await self._ask(method, path, body, params)
        try:
            return answer.json() if answer.content else {}
        except ValueError as error:
            raise Refused(f"what it answers at {path} is not JSON: is it {self.label}?") from error

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, params: dict[str, str] | None = None
    ) -> httpx.Response:
        pause, longest = BUSY_SECONDS
        while True:
            try:
                answer = await self._http.request(method, path, json=body, params=params)
            except httpx.TransportError as error:
                raise ServerGone(f"{type(error).__name__}: {error}".rstrip(": ")) from error
            if answer.status_code not in (429, 503):
                await self._check(answer)
                return answer
            if answer.status_code == 503 and not await self.healthy():
                raise ServerGone(_message(answer))
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _check(self, answer: httpx.Response) -> None:
        if answer.status_code == 200:
            return
        if answer.status_code < 500:
            raise (Unknown if answer.status_code == 404 else Refused)(_message(answer))
        if not await self.healthy():
            raise ServerGone(_message(answer))
        raise ServerFailed(_message(answer))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """EngineUnfit where an answer lacks what it should hold."""
        try:
            yield
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineUnfit(
                f"the answers of {self.title} lack what they should tell ({type(error).__name__}: {error}): start "
                f"a version that docs/engines.md names"
            ) from error

    def _versions(self, choice: dict[str, Any]) -> tuple[int, ...]:
        """The version of each token that was sampled. ServerGone where the server has lost what it was given."""
        versions: list[int] = []
        for span in choice.get("weight_versions") or ():
            name = str(span["version"])
            owner, _, version = name.rpartition(":")
            if name == UNNAMED:
                raise ServerGone("it was started again and sampled with the weights that it was started with")
            if owner != self._owner or not version.isdigit():
                raise EngineUnfit(
                    f"{self.title} sampled with weights called {name!r}, which this process did not "
                    f"give it: every worker and evaluation needs servers of its own"
                )
            versions += [int(version)] * (span["end"] - span["start"])
        if len(versions) != len(choice["token_ids"]):
            raise EngineUnfit(
                f"{self.title} does not tell the weights of every token: it needs a version that gives "
                f"`weight_versions`, as docs/engines.md says"
            )
        return tuple(versions)


def _message(answer: httpx.Response) -> str:
    """The server's own words, in short."""
    try:
        told = answer.json()
        text = told["error"]["message"] if "error" in told else told["detail"]
    except (ValueError, KeyError, TypeError):
        text = answer.text.strip() or answer.reason_phrase
    return f"{answer.status_code} at {answer.url.path}: {str(text)[:300]}"
