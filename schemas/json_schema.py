"""The JSON Schema of a configuration file: editors complete and check TOML by it (`#:schema run.schema.json`).

`python -m schemas.json_schema FILE` writes it; a test keeps the file in `examples/` equal to the models.
"""

import json
import sys
from pathlib import Path
from typing import Any

from schemas.config import Run


def run_schema() -> dict[str, Any]:
    """The schema of `schemas.config.Run`; the text under each field is its description."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Run.model_json_schema()}


def schema_text() -> str:
    """The file as it is committed."""
    return json.dumps(run_schema(), indent=2) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(schema_text(), encoding="utf-8")
