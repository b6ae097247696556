"""Whether a mesh divides what it cuts: the model's sizes, and the rows of every forward pass."""

from models.config import DecoderConfig
from schemas.config import Run
from schemas.errors import RequestError
from schemas.warm_ups import SFT, WarmUp
from trainer.packing import rl_layout, sft_layout


def check_mesh(config: Run, decoder: DecoderConfig) -> None:
    """RequestError names the size that `rl.mesh` does not divide. Devices are counted where they are."""
    mesh = config.rl.mesh
    rows = {"RL": rl_layout(config.rl, config.rollout.max_length).rows}
    rows |= {f"the warm-up `{stage.name}`": _rows(stage) for stage in config.warm_up}
    cuts = [
        ("fsdp", mesh.fsdp, decoder.hidden_size, "the model's hidden size of"),
        ("tensor", mesh.tensor, decoder.num_attention_heads, "the model's number of attention heads,"),
        ("tensor", mesh.tensor, decoder.num_key_value_heads, "the model's number of key-value heads,"),
        ("tensor", mesh.tensor, decoder.intermediate_size, "the model's intermediate size of"),
        *(("data x fsdp", mesh.rows, n, f"the rows of a forward pass of {where},") for where, n in rows.items()),
    ]
    for axes, parts, size, what in cuts:
        if size % parts:
            raise RequestError(f"rl.mesh: {axes} = {parts} does not divide {what} {size}: choose sizes that do")


def _rows(stage: WarmUp) -> int:
    return sft_layout(stage).rows if isinstance(stage, SFT) else stage.at_once
