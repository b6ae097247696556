"""What a server that was given by URL must be like, seen before it is given anything."""

import asyncio
from collections.abc import Mapping
from typing import Any

from models.config import DecoderConfig
from rollout.vllm_client import Refused, ServerGone, VllmClient
from schemas.config import Servers
from schemas.errors import RequestError


async def check_servers(settings: Servers, config: DecoderConfig, context: int, rank: int) -> None:
    """RequestError names the first server that is of no use to a policy with adapters of `rank`; 0: whole weights."""
    for url in settings.urls:
        client = VllmClient(url, label=settings.label)
        try:
            await check_server(client, config, context, rank, settings.start_seconds)
        finally:
            await client.close()


async def check_server(client: VllmClient, config: DecoderConfig, context: int, rank: int, seconds: float) -> None:
    """RequestError where the server is not there, says nothing for `seconds`, or is of no use."""
    url, correct = client.url, f"rollout.{client.label.lower()}.urls"
    try:
        async with asyncio.timeout(seconds):
            if not await client.healthy():
                raise RequestError(f"no {client.label} answers at {url}: start it, or correct {correct}")
            told = await client.describe()
    except (ServerGone, Refused) as error:
        raise RequestError(f"what answers at {url} is no {client.label} server that can be used ({error})") from error
    except TimeoutError as error:
        raise RequestError(f"the server at {url} does not say what it serves within {seconds:g} s") from error
    _check_model(url, told["model"], config.to_hf(), correct)
    _check_context(url, told["context"], context)
    _check_rank(url, told.get("rank", 0), rank)


def _check_model(url: str, held: Mapping[str, Any], ours: Mapping[str, Any], correct: str) -> None:
    for key, value in held.items():
        wanted = ours.get(key)
        if None not in (value, wanted) and value != wanted:
            raise RequestError(
                f"the server at {url} serves another model: its {key} is {value}, and that of this run's model is "
                f"{wanted}; start it on this run's weights, or correct {correct}"
            )


def _check_context(url: str, held: int, context: int) -> None:
    if held < context:
        raise RequestError(
            f"the server at {url} has a context of {held} tokens, less than rollout.max_length = {context}: start it "
            f"with --max-model-len {context}"
        )


def _check_rank(url: str, most: int, rank: int) -> None:
    if rank and not most:
        raise RequestError(
            f"the server at {url} takes no adapters: start it with --enable-lora and "
            f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 as docs/engines.md says, or leave out rollout.vllm.adapters"
        )
    if rank > most:
        raise RequestError(
            f"the server at {url} takes adapters up to rank {most}, less than lora.rank = {rank}: start it with a "
            f"higher --max-lora-rank"
        )
