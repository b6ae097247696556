"""The fake service, asked by clients that we did not write: Google's own, and gcsfs as it comes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.fake_gcs import FakeGcs
from support.fake_gcs_faults import KINDS, Faults, Rates

os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
auth = pytest.importorskip("google.auth.credentials")
errors = pytest.importorskip("google.api_core.exceptions")
storage = pytest.importorskip("google.cloud.storage")
gcsfs = pytest.importorskip("gcsfs")
CHUNK = 256 * 1024


@pytest.fixture
def fake() -> Iterator[FakeGcs]:
    with FakeGcs("bucket") as server:
        yield server


@pytest.fixture
def bucket(fake: FakeGcs) -> Any:
    """The bucket by Google's client."""
    client = storage.Client(
        project="p", credentials=auth.AnonymousCredentials(), client_options={"api_endpoint": fake.url}
    )
    return client.bucket("bucket")


@pytest.fixture
def files(fake: FakeGcs) -> Any:
    """gcsfs as users have it."""
    return gcsfs.GCSFileSystem(token="anon", endpoint_url=fake.url, skip_instance_cache=True, use_listings_cache=False)


@pytest.mark.parametrize("chunk", [None, CHUNK], ids=["multipart", "resumable"])
def test_preconditions_on_uploads(bucket: Any, chunk: int | None) -> None:
    data = os.urandom(3 * CHUNK + 5)
    blob = bucket.blob("x", chunk_size=chunk)
    blob.upload_from_string(data, if_generation_match=0)
    first = blob.generation
    assert bucket.blob("x").download_as_bytes() == data
    with pytest.raises(errors.PreconditionFailed):
        bucket.blob("x", chunk_size=chunk).upload_from_string(b"no" * CHUNK, if_generation_match=0)
    blob.upload_from_string(b"other" * CHUNK, if_generation_match=first)
    assert blob.generation > first
    with pytest.raises(errors.PreconditionFailed):
        blob.upload_from_string(b"no" * CHUNK, if_generation_match=first)
    assert bucket.get_blob("x").size == 5 * CHUNK


def test_preconditions_on_media_uploads(files: Any, fake: FakeGcs) -> None:
    def upload(generation: int) -> int:
        where = f"{fake.url}/upload/storage/v1/b/bucket/o"
        made = files.call(
            "POST", where, uploadType="media", name="x", ifGenerationMatch=generation, data=b"1", json_out=True
        )
        return int(made["generation"])

    first = upload(0)
    for stale in (0, first + 1):
        with pytest.raises(FileExistsError):
            upload(stale)
    assert upload(first) > first


def test_preconditions_on_deletes_and_reads(bucket: Any) -> None:
    blob = bucket.blob("x")
    blob.upload_from_string(b"0123456789")
    with pytest.raises(errors.PreconditionFailed):
        blob.delete(if_generation_match=blob.generation + 1)
    with pytest.raises(errors.PreconditionFailed):
        blob.download_as_bytes(if_generation_match=1)
    with pytest.raises(errors.NotModified):
        blob.download_as_bytes(if_generation_not_match=blob.generation)
    assert blob.download_as_bytes(start=2, end=4) == b"234"
    with pytest.raises(errors.RequestRangeNotSatisfiable):
        blob.download_as_bytes(start=10)
    blob.delete(if_generation_match=blob.generation)
    with pytest.raises(errors.NotFound):
        blob.delete()


def test_listings(bucket: Any) -> None:
    names = [f"a/{n:02d}" for n in range(9)] + ["a.b", "b/c/d", "b/e", "z"]
    for name in names:
        bucket.blob(name).upload_from_string(b"")

    def listed(**more: Any) -> list[str]:
        return [b.name for b in bucket.list_blobs(page_size=2, **more)]

    assert listed() == sorted(names)
    assert listed(prefix="a/", start_offset="a/04", end_offset="a/07") == ["a/04", "a/05", "a/06"]
    pages = bucket.list_blobs(delimiter="/", page_size=2)
    assert [b.name for b in pages] == ["a.b", "z"] and pages.prefixes == {"a/", "b/"}
    assert listed(prefix="b/", delimiter="/") == ["b/e"]


def test_of_sixteen_uploads_one_is_first(bucket: Any) -> None:
    def upload(number: int) -> bool:
        try:
            bucket.blob("x").upload_from_string(b"%d" % number, if_generation_match=0)
        except errors.PreconditionFailed:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(upload, range(16))) == 1


def test_a_missing_bucket(fake: FakeGcs, bucket: Any) -> None:
    with pytest.raises(errors.NotFound, match="bucket does not exist"):
        bucket.client.bucket("missing").blob("x").upload_from_string(b"")
    assert bucket.exists() and not bucket.client.bucket("missing").exists()


def test_gcsfs_reads_and_writes_files(files: Any) -> None:
    data = os.urandom(6_000_000)
    for name, content in (("small", b"1"), ("large", data)):
        files.pipe_file(f"bucket/d/{name}", content, mode="create")
        with pytest.raises(FileExistsError):
            files.pipe_file(f"bucket/d/{name}", content, mode="create")
        assert files.cat_file(f"bucket/d/{name}") == content
    assert sorted(files.ls("bucket/d")) == ["bucket/d/large", "bucket/d/small"]
    assert files.cat_file("bucket/d/large", start=5, end=9) == data[5:9]


def test_a_checksum_that_does_not_hold(files: Any, fake: FakeGcs) -> None:
    body = b'--m\r\nContent-Type: application/json\r\n\r\n{"name": "x", "crc32c": "AAAAAA=="}\r\n'
    body += b"--m\r\nContent-Type: text/plain\r\n\r\n1\r\n--m--\r\n"
    with pytest.raises(Exception, match="CRC32C"):
        files.call(
            "POST", f"{fake.url}/upload/storage/v1/b/bucket/o", uploadType="multipart", data=body,
            headers={"Content-Type": "multipart/related; boundary=m"},
        )  # fmt: skip
    assert fake.bucket("bucket").objects == {}


def test_chance_is_seeded() -> None:
    def draw(seed: int) -> list[str]:
        faults = Faults(Rates.some(0.1), seed)
        return [faults.strike("GET") for _ in range(200)]

    assert draw(1) == draw(1) != draw(2) and set(draw(1)) == {"", *KINDS}


def test_it_runs_as_a_process() -> None:
    argv = [sys.executable, "-m", "support.fake_gcs", "--bucket", "mine", "--rates", '{"r503": 0.1}']
    pipe, home = subprocess.PIPE, Path(__file__).parents[1]
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, cwd=home) as process:
        assert process.stdin is not None and process.stdout is not None
        url = process.stdout.readline().strip()
        fs = gcsfs.GCSFileSystem(token="anon", endpoint_url=url, skip_instance_cache=True)
        fs.pipe_file("mine/x", b"1")
        assert fs.cat_file("mine/x") == b"1"
        process.stdin.close()
        assert process.wait(10) == 0
