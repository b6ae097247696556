"""The house itself: packages resolve to this repository, wheels hold what they should, generated files are current."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from rollout.cast import load_cast
from schemas import data, json_schema, reference
from schemas.config import Environment
from schemas.version import ROOMS

HOME = Path(__file__).resolve().parents[1]
SKIPPED = {".git", ".venv", ".headrace", "__pycache__", "model", "dist", "build"}


def files(*suffixes):
    """The repository's own text files."""
    for folder, folders, names in os.walk(HOME):
        folders[:] = [f for f in folders if f not in SKIPPED and not f.endswith(("_cache", ".egg-info"))]
        yield from (Path(folder, n) for n in names if Path(n).suffix in suffixes or (n == "Makefile" and suffixes))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_this_repository_s(room):
    spec = importlib.util.find_spec(room)
    assert spec is not None
    assert Path(str(spec.origin)).resolve() == HOME / room / "__init__.py"


def test_a_wheel_holds_the_rooms_and_no_tests(tmp_path):
    from hatchling.builders.wheel import WheelBuilder

    (path,) = WheelBuilder(str(HOME)).build(directory=str(tmp_path), versions=["standard"])
    names = zipfile.ZipFile(path).namelist()
    assert {n.split("/")[0] for n in names if ".dist-info" not in n} == {"headrace.py", *ROOMS}
    assert [n for n in names if re.search(r"test_|/tests/|conftest", n)] == []


def test_the_json_schema_is_current():
    committed = (HOME / "examples/run.schema.json").read_text(encoding="utf-8")
    assert committed == json_schema.schema_text(), "run `make schema`"


def test_the_reference_is_current():
    committed = (HOME / "docs/configuration.md").read_text(encoding="utf-8")
    assert committed == reference.with_reference(committed), "run `make schema`"


def test_the_reference_names_every_setting():
    schema = json_schema.run_schema()
    text = reference.reference()
    for section in [schema, *schema["$defs"].values()]:
        assert [f for f in section["properties"] if f"| `{f}` |" not in text] == []


def test_schemas_import_nothing_heavy():
    code = "import sys, schemas.config_text; print(*{m.split('.')[0] for m in sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"jax", "flax", "prefect", "pyarrow", "numpy"} & set(found) == set()


def test_examples_in_the_data_document_are_accepted():
    text = (HOME / "docs/data.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```json (\w+)\n(.*?)```", text, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["task", "demonstration", "preference"]
    for kind, block in blocks:
        assert getattr(data, kind)(json.loads(block), "docs/data.md")


def test_the_example_in_the_environments_document_loads(tmp_path):
    text = (HOME / "docs/environments.md").read_text(encoding="utf-8")
    code, toml = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("python", "toml"))
    assert code is not None and toml is not None
    (tmp_path / "shop.py").write_text(code[1], encoding="utf-8")
    cast = load_cast(Environment.model_validate(tomllib.loads(toml[1])["environment"]), str(tmp_path))
    assert [spec.name for spec in cast.tool_specs] == ["stock"]


def test_links_between_documents_lead_somewhere():
    for path in files(".md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_no_machine_of_ours_is_in_the_repository():
    """No absolute folders, no addresses of package registries, no notes to oneself."""
    wrong = re.compile(r"/[w]ork/|/[r]oot/|/[h]ome/[a-z]|/[t]mp/|py[p]i\.org|python[h]osted|[T]ODO|[F]IXME|[X]XX")
    for path in files(".py", ".md", ".toml", ".txt", ".yaml", ".json"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert not wrong.search(line), f"{path.relative_to(HOME)} line {number}: {line.strip()[:100]}"


def test_files_stay_small_and_test_names_unique():
    python = [p for p in files(".py") if p.suffix == ".py"]
    assert [p.name for p in python if len(p.read_text(encoding="utf-8").splitlines()) > 450] == []
    tests = [p.name for p in python if p.name.startswith("test_")]
    assert sorted(tests) == sorted(set(tests))


@pytest.mark.parametrize("room", ROOMS)
def test_modules_say_their_idea(room):
    for path in (HOME / room).rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), (
            f"{path.relative_to(HOME)} has no docstring"
        )


def test_the_commit_hook_is_what_ci_lints():
    assert "entry: make lint" in (HOME / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.search(r"^test: lint\b", (HOME / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert os.access(HOME / ".ci/run", os.X_OK)
