"""`headrace audit` from the command line: tables, JSON, files of rows, exit codes."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from support.audited import STEPS, edit_metadata, edit_record, finished
from support.protocol import BASE

from flows.cli import main
from flows.tables import show
from storage.catalog_copy import compact
from storage.folder import FolderStore

TRAINED = STEPS * 4


@pytest.fixture(scope="module")
def finished_root(tmp_path_factory):
    root = tmp_path_factory.mktemp("audited")
    store = FolderStore(root)
    finished(store)
    compact(store, BASE)
    return root


def said(capsys, root, *argv, code=0):
    assert main(["audit", *argv, "--root", str(root)]) == code
    return capsys.readouterr()


def test_a_checkpoint_as_a_table_as_json_and_as_files(finished_root, capsys, tmp_path: Path):
    out = said(capsys, finished_root, "checkpoint", "test").out
    assert f"trained on {TRAINED} trajectories" in out and "data data/x.jsonl" in out
    assert [line.split() for line in out.splitlines() if "0-0-0" in line] == [
        ["test", "0", "0", "0-0-0", "task-0", "w0", "0", "-1"]
    ]
    plain = json.loads(said(capsys, finished_root, "checkpoint", "test@2", "--json").out)
    assert len(plain["trajectories"]) == plain["trained"] == TRAINED // 2
    for name, read in (("rows.parquet", parquet.read_table), ("rows.csv", csv.read_csv)):
        err = said(capsys, finished_root, "checkpoint", "test", "--out", str(tmp_path / name)).err
        assert f"{TRAINED} rows written" in err
        table = read(tmp_path / name)
        assert table.num_rows == TRAINED and "row_digest" in table.column_names


def test_every_kind_answers_for_people_and_for_programs(finished_root, capsys):
    for argv, words in (
        (("verify", "test"), "is sound"),
        (("trajectory", "test", "0-0-0"), "descendant   test@2"),
        (("impact", "test", "0-0-0"), "1 trajectories trained"),
        (("impact", "test", "task:task-0"), "checkpoint  test@4"),
        (("bias", "test"), "difficulty"),
    ):
        assert words in said(capsys, finished_root, *argv).out
        assert json.loads(said(capsys, finished_root, *argv, "--json").out)


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (("impact", "test", "0-0-0"), "ref"),
        (("bias", "test"), "value"),
        (("trajectory", "test", "0-0-0"), "checkpoint"),
    ],
)
def test_lists_go_to_files(finished_root, capsys, tmp_path, kind, column):
    said(capsys, finished_root, *kind, "--out", str(tmp_path / "rows.parquet"))
    assert parquet.read_table(tmp_path / "rows.parquet")[column].to_pylist()


def test_violations_go_to_files(tmp_path, capsys):
    store = FolderStore(tmp_path)
    finished(store)
    edit_record(store, 1, lambda rows: rows[:-1])
    said(capsys, tmp_path, "verify", "test", "--out", str(tmp_path / "found.csv"), code=3)
    assert any("hash chain" in text for text in csv.read_csv(tmp_path / "found.csv")["violation"].to_pylist())


def test_text_of_others_is_shown_as_one_line(capsys):
    show(pa.table({"task_id": ["a\nb\x1b[31m", "x" * 200]}))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and "\x1b" not in lines[1] and lines[2].endswith("…")


@pytest.mark.parametrize("name", ["rows.txt", "nowhere/rows.csv"])
def test_a_file_that_rows_cannot_go_to_is_refused_first(finished_root, capsys, tmp_path, name):
    assert "--out" in said(capsys, finished_root, "bias", "test", "--out", str(tmp_path / name), code=2).err


def test_a_data_file_that_lies_here_goes_by_its_digest(finished_root, capsys, tmp_path):
    (tmp_path / "tasks.jsonl").write_text("{}")
    err = said(capsys, finished_root, "impact", "test", str(tmp_path / "tasks.jsonl"), code=2).err
    assert "no data file of run `test`: its files are data/x.jsonl" in err


def test_a_catalog_is_built_and_refused_when_the_ledger_is_another(tmp_path, capsys):
    store = FolderStore(tmp_path)
    finished(store)
    plain = json.loads(said(capsys, tmp_path, "catalog", "test", "--json").out)
    assert plain["stages"][0]["records"] == STEPS + 1
    edit_metadata(store, STEPS, updates=1)
    found = said(capsys, tmp_path, "checkpoint", "test", "--json")
    assert "which is not in the ledger" in found.err and json.loads(found.out)["trained"] == TRAINED
    assert said(capsys, tmp_path, "checkpoint", "test", "--ledger").err == ""
    said(capsys, tmp_path, "verify", "test", code=3)
