"""A real run recounted from its files with pyarrow and json alone, and every tampering found by the real command."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.real_stage import lay_out, small, train
from support.recount import recount

from flows.cli import main
from schemas import checksum
from storage.folder import FolderStore

STEPS, ROWS = 5, 8


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a run `test` that real workers and the real learner have finished. Not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    store = FolderStore(folder / "root")
    store.probe()
    spec = lay_out(store, folder, small(steps=STEPS, checkpoint_every=2, max_staleness=2))
    asyncio.run(train(store, spec, workers=2))
    return folder / "root"


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A copy that may be tampered with."""
    return Path(shutil.copytree(finished, tmp_path / "root"))


def audit(root: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, Any, str]:
    """Exit code, what was printed as JSON, and what went to standard error."""
    code = main(["audit", *argv, "--root", str(root), "--json"])
    shown = capsys.readouterr()
    return code, json.loads(shown.out or "null"), shown.err


def test_the_recount_agrees(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found, _ = audit(finished, capsys, "verify", "test")
    counted = recount(finished, "test")
    trained = counted.pop("trained")
    assert code == 0 and found["ok"] and len(trained) == found["dispositions"]["trained"] == STEPS * ROWS
    assert counted == {name: found[name] for name in counted}
    assert {"generated", "trained_twice", "unaccounted", "max_staleness", "checked_rows", "pending"} <= counted.keys()


@pytest.mark.parametrize("step", [2, 4, STEPS, None])
def test_a_checkpoint_lists_what_the_chain_trained(
    finished: Path, capsys: pytest.CaptureFixture[str], step: int | None
) -> None:
    code, found, _ = audit(finished, capsys, "checkpoint", "test" if step is None else f"test@{step}")
    listed = [[t["step"], t["position"], t["trajectory"]] for t in found["trajectories"]]
    until = STEPS if step is None else step
    assert code == 0 and found["trained"] == until * ROWS
    assert listed == [t for t in recount(finished, "test")["trained"] if t[0] < until]


def test_a_checkpoint_that_does_not_exist(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = audit(finished, capsys, "checkpoint", "test@3")
    assert code == 2 and "there is no checkpoint `test@3`: steps with one are 2, 4, 5" in err


def without_one(rows: list[dict]) -> list[dict]:
    return rows[:1] + rows[2:]


def one_twice(rows: list[dict]) -> list[dict]:
    return [*rows, rows[1]]


def another_reward(rows: list[dict]) -> list[dict]:
    return [rows[0], rows[1] | {"reward": rows[1]["reward"] + 0.25}, *rows[2:]]


def another_token(rows: list[dict]) -> list[dict]:
    return [rows[0], rows[1] | {"tokens": [rows[1]["tokens"][0] ^ 1, *rows[1]["tokens"][1:]]}, *rows[2:]]


def another_advantage(rows: list[dict]) -> list[dict]:
    return [rows[0], rows[1] | {"advantage": 3.0}, *rows[2:]]


def another_end(rows: list[dict]) -> list[dict]:
    return [rows[0], rows[1] | {"disposition": "unused"}, *rows[2:]]


def rewrite(path: Path, change: Callable[[list[dict]], list[dict]], *, stamped: bool = True) -> None:
    """Put changed rows into the file, all else as it was; `stamped`: with a checksum that fits."""
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    blank = {checksum.KEY: checksum.BLANK} if stamped else {}
    schema = table.schema.with_metadata(table.schema.metadata | blank)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(pa.Table.from_pylist(change(table.to_pylist()), schema=schema))
    data = sink.getvalue().to_pybytes()
    path.unlink()  # a copy may share the file with its original
    path.write_bytes(checksum.stamp(data) if stamped else data)


def some(root: Path, folder: str) -> Path:
    """An Arrow file below the stage's folder with several rows."""
    for path in sorted((root / "runs" / "test").glob(f"rl-*/{folder}/**/*.arrow")):
        try:
            if pa.ipc.open_file(path.read_bytes()).read_all().num_rows > 2:
                return path
        except pa.ArrowInvalid:  # the end marker
            continue
    raise AssertionError(f"no file with several rows below {folder}")


@pytest.mark.parametrize(
    ("folder", "change"),
    [
        *(("trajectories", change) for change in (without_one, one_twice, another_reward, another_token)),
        *(("ledger", change) for change in (without_one, one_twice, another_advantage, another_end)),
    ],
)
def test_one_row_tampered_with_is_a_violation(
    copy: Path, capsys: pytest.CaptureFixture[str], folder: str, change: Callable[[list[dict]], list[dict]]
) -> None:
    path = some(copy, folder)
    rewrite(path, change)
    code, found, err = audit(copy, capsys, "verify", "test")
    assert code == 3 and not found["ok"] and not recount(copy, "test")["ok"]
    assert err.startswith("headrace: the audit of run test failed: ") and err.count("\n") == 1


def test_rows_count_and_not_their_packing(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = some(copy, "trajectories")
    before = path.read_bytes()
    rewrite(path, lambda rows: rows)
    assert path.read_bytes() != before
    assert audit(copy, capsys, "verify", "test")[0] == 0


def test_a_file_whose_checksum_does_not_fit_is_a_violation(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = some(copy, "trajectories")
    rewrite(path, lambda rows: rows, stamped=False)
    code, _, err = audit(copy, capsys, "verify", "test")
    assert code == 3 and "its checksum does not fit" in err and path.name in err


@pytest.mark.parametrize("folder", ["trajectories", "ledger"])
def test_a_removed_file_is_a_violation(copy: Path, capsys: pytest.CaptureFixture[str], folder: str) -> None:
    some(copy, folder).unlink()
    assert audit(copy, capsys, "verify", "test")[0] == 3
