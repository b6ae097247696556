"""Whether lengths and prompts fit the model: found before any work starts, since no episode could be played."""

from collections.abc import Sequence
from typing import Any

from models.chat import ChatFormat, chat_format
from models.config import DecoderConfig
from models.tokenizer import ByteTokenizer, Tokenizer, tokenizer_from_files
from rollout.cast import Cast
from schemas.config import Architecture, Run
from schemas.data import Task
from schemas.errors import RequestError
from storage.rows import read_tasks
from tasks.initial import initial_files, read_config_json
from tasks.request import Request, task_files
from trainer.mesh_fit import check_mesh


def check_fit(request: Request, cast: Cast) -> None:
    """RequestError names what is too long; prompts are checked where no code of the user's makes them."""
    shape, own = read_config_json(request), request.config.model.architecture
    limit = own.max_position_embeddings if shape is None and own else (shape or {})["max_position_embeddings"]
    check_lengths(request.config, limit)
    if request.config.lora is not None or request.config.rl.mesh.devices > 1:
        check_shape(request.config, decoder_config(shape, own))
    chat = chat_format(read_tokenizer(request), cast.tool_specs)
    for setting, where in task_files(request.config).items():
        file = request.data[setting]
        tasks = read_tasks(file.data, file.suffix, file.where)
        check_prompts(f"{setting} ({where})", tasks, cast, chat, request.config.rollout.max_length)


def decoder_config(described: dict[str, Any] | None, own: Architecture | None) -> DecoderConfig:
    """The model's shape: that of a config.json, or the configuration's own."""
    if described is not None or own is None:
        return DecoderConfig.from_hf(described or {})
    tokenizer = ByteTokenizer()
    return DecoderConfig.from_architecture(own, tokenizer.vocab_size, tokenizer.special("<|end|>"))


def read_tokenizer(request: Request) -> Tokenizer:
    """The tokenizer of the weights that the request starts from, ours where they are made from scratch."""
    files = initial_files(request)
    if files is None:
        return ByteTokenizer()
    names, read = files
    return tokenizer_from_files(read, names, str(request.config.model.path))


def check_lengths(config: Run, context: int) -> None:
    """RequestError where an episode or a demonstration may be longer than what the model was made for."""
    lengths = {"rollout.max_length": config.rollout.max_length}
    lengths |= {f"max_length of the warm-up `{stage.name}`": stage.max_length for stage in config.warm_up}
    for setting, length in lengths.items():
        if length > context:
            raise RequestError(
                f"{setting} is {length}, but the model sees at most {context} tokens (max_position_embeddings): "
                "lower it"
            )


def check_shape(config: Run, decoder: DecoderConfig) -> None:
    """RequestError where adapters or a mesh do not fit the model."""
    check_mesh(config, decoder)
    if config.lora is None:
        return
    from models.pure import shapes
    from trainer.lora import adapted

    adapted(shapes(decoder), config.lora)


def check_prompts(where: str, tasks: Sequence[Task], cast: Cast, chat: ChatFormat, length: int) -> None:
    """RequestError names the first task whose prompt leaves the model no room to answer."""
    for task in tasks:
        opening = cast.opening(task)
        if opening is None:
            return
        count = len(chat.prompt(opening, cast.tool_specs))
        if count >= length:
            raise RequestError(
                f"{where}: the prompt of the task `{task.id}` has {count} tokens, but an episode holds "
                f"rollout.max_length = {length}: raise it, or shorten the prompt"
            )
