"""How far apart rotary positions lie, read from the several ways in which a `config.json` says it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.errors import RequestError


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's stretching of the rotary frequencies (`rope_type` "llama3")."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class LinearScaling:
    """All rotary frequencies divided by one factor (`rope_type` "linear")."""

    factor: float


@dataclass(frozen=True)
class Rope:
    """The rotary base and scaling of full layers, and the base of windowed ones (None: both of full layers)."""

    theta: float
    scaling: RopeScaling | LinearScaling | None
    local_theta: float | None = None


def read_rope(config: Mapping[str, Any]) -> Rope:
    """The rope settings of a `config.json`, as transformers 4 (`rope_theta`, `rope_scaling`) or 5 writes them.

    RequestError for a scaling that we do not compute.
    """
    plain = {"rope_theta": config.get("rope_theta", 10000.0), **(config.get("rope_scaling") or {})}
    given = config.get("rope_parameters") or {}
    local = config.get("rope_local_base_freq")
    if "full_attention" in given or "sliding_attention" in given:
        sliding = given.get("sliding_attention") or {}
        if _kind(sliding) != "default":
            raise RequestError(
                f'config.json: rope_type "{_kind(sliding)}" of sliding_attention is not supported; "default" is.'
            )
        local = sliding.get("rope_theta", local)
        given = given.get("full_attention") or {}
    full = plain | given
    return Rope(float(full["rope_theta"]), _scaling(full), None if local is None else float(local))


def _kind(rope: Mapping[str, Any]) -> str:
    return rope.get("rope_type", rope.get("type", "default"))


def _scaling(rope: Mapping[str, Any]) -> RopeScaling | LinearScaling | None:
    kind = _kind(rope)
    if kind == "default":
        return None
    if kind not in ("llama3", "linear"):
        raise RequestError(f'config.json: rope_type "{kind}" is not supported; "default", "linear" and "llama3" are.')
    try:
        if kind == "linear":
            return LinearScaling(factor=float(rope["factor"]))
        return RopeScaling(
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_max_position_embeddings=int(rope["original_max_position_embeddings"]),
        )
    except KeyError as error:
        raise RequestError(f"config.json: the {kind} rope settings lack {error}; add it.") from error
