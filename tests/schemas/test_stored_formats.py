"""Rows, records and manifests come back as they were written, and digests notice every change."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import formats
from support.protocol import METADATA, trajectory

from schemas import seeds
from schemas import trajectory as trajectory_schema
from schemas.errors import RequestError
from schemas.ledger import LedgerRow, Record, RecordMetadata, decode, encode, record_digest
from schemas.manifest import Claim
from schemas.trajectory import from_table, row_digest, to_table
from schemas.version import SCHEMA_VERSION


@settings(deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20), st.text(max_size=20)
)
def test_a_row_has_the_same_digest_after_a_shard(logprobs, detail):
    n = len(logprobs)
    row = trajectory(
        1, 2, tokens=tuple(range(n)), mask=(True,) * n, logprobs=tuple(logprobs), detail=detail, reward=0.1
    )
    (back,) = from_table(to_table([row], METADATA))
    assert row_digest(back) == row_digest(row)


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(trajectory(0, 0))])
def test_the_digest_covers_every_field(field):
    row = trajectory(0, 0)
    value = getattr(row, field)
    other: object
    if isinstance(value, str):
        other = value + "x"
    elif isinstance(value, int | float):
        other = value + 1
    else:
        other = ()
    assert row_digest(dataclasses.replace(row, **{field: other})) != row_digest(row)


def test_a_record_is_deterministic_and_round_trips():
    rows = (
        LedgerRow(
            "trajectory", group=1, sample=0, worker="w", seq=0, row=1, disposition="trained", position=0, advantage=0.5
        ),
        LedgerRow("group", group=1, disposition="trained"),
    )
    record = Record(RecordMetadata(3, "step", 3, 1, "L", "c", "{}", "p"), rows)
    assert encode(record) == encode(record)
    assert decode(encode(record)) == record
    other = dataclasses.replace(record, metadata=dataclasses.replace(record.metadata, previous="q"))
    assert record_digest(encode(other)) != record_digest(encode(record))


def test_the_formats_are_those_of_this_schema_version():
    """Else programs of one version number would misread each other: see `SCHEMA_VERSION`."""
    assert formats.described() == formats.WRITTEN.read_text(encoding="utf-8"), (
        "the stored formats changed: raise SCHEMA_VERSION, then run `python tests/support/formats.py`"
    )


def test_changed_formats_are_not_written_down_under_the_same_version(monkeypatch, tmp_path):
    monkeypatch.setattr(formats, "WRITTEN", tmp_path / "formats.txt")
    formats.write()
    formats.write()
    old = formats.WRITTEN.read_text()
    monkeypatch.setattr(trajectory_schema, "FAILED", frozenset())
    with pytest.raises(SystemExit, match="raise SCHEMA_VERSION"):
        formats.write()
    monkeypatch.setattr(formats, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    formats.write()
    assert formats.WRITTEN.read_text() != old


def test_damaged_and_foreign_records_are_refused_with_the_reason():
    record = Record(RecordMetadata(0, "step", 0, 1, "L", "c", "{}", "", schema_version=99), ())
    with pytest.raises(ValueError, match="schema version 99"):
        decode(encode(record))
    with pytest.raises(ValueError, match="no ledger record"):
        decode(encode(record)[:50])


def test_documents_of_another_schema_version_or_damaged_ones_are_refused():
    claim = Claim(group=1, owner="a", owners=("a",), takeovers=0, first_claimed=0.0, limit_version=0)
    assert Claim.from_bytes(claim.to_bytes(), "k") == claim
    with pytest.raises(RequestError, match="schema version 7"):
        Claim.from_bytes(claim.model_copy(update={"schema_version": 7}).to_bytes(), "k")
    with pytest.raises(RequestError, match="k is not a valid Claim"):
        Claim.from_bytes(b'{"schema_version": %d, "group": "x"}' % SCHEMA_VERSION, "k")


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 50), st.integers(0, 20))
def test_every_epoch_plays_every_task_once(seed, count, epoch):
    played = [seeds.task_index(seed, count, epoch * count + i) for i in range(count)]
    assert sorted(played) == list(range(count))


def test_request_seeds_differ_by_every_name_and_fit_in_31_bits():
    found = {seeds.request(*names) for names in np.ndindex(2, 3, 3, 3, 3)}
    assert len(found) == 2 * 81 and all(0 <= s < 2**31 for s in found)
