"""The small run that tests start from: a model of a few hundred numbers, two groups of two samples a step."""

from typing import Any

from schemas.config import Run
from schemas.config_text import check


def small(**sections: dict[str, Any]) -> Run:
    """The run, on the scripted engine, with these settings merged into its sections."""
    raw: dict[str, Any] = {
        "name": "test",
        "model": {
            "architecture": {
                "hidden_size": 8,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
                "num_key_value_heads": 1,
            }
        },
        "environment": {},
        "rollout": {"engine": "scripted", "script": "x:y", "lease_seconds": 0.2},
        "rl": {
            "tasks": "tasks.jsonl",
            "steps": 4,
            "groups_per_batch": 2,
            "group_size": 2,
            "max_staleness": 1,
            "optimizer": {"learning_rate": 0.1},
        },
        "evaluation": {"tasks": "held.jsonl"},
        "promotion": {"tasks": "gate.jsonl"},
    }
    for section, values in sections.items():
        raw[section] = raw.get(section, {}) | values
    return check(raw, "test")
