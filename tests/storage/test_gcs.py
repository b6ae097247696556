"""Google Cloud Storage when something goes wrong: lost answers, refusals, damage, and what people are told."""

import os
import pickle
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

import pytest
from support import gcs_stores, store_processes
from support.fake_gcs import FakeGcs
from support.fake_gcs_faults import Rates

from schemas.errors import HeadraceError, RequestError, RunStopped
from storage.gcs_client import Patience
from storage.objects import GenerationMismatch, ObjectExists, ObjectMissing, ObjectStore, write_pause
from storage.open import open_source, open_store

HASTY = Patience(deadline=0.3, first=0.01, longest=0.05, silence=0.3)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGcs]:
    """A service of this test's own, which `gs://` means here and in processes that are spawned."""
    with FakeGcs("bucket", "other") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.fixture
def store(fake: FakeGcs) -> ObjectStore:
    return gcs_stores.opened(fake.url, "gs://bucket/below/this")


def sentence(error: HeadraceError) -> str:
    assert "\n" not in str(error) and len(str(error)) < 500
    return str(error)


# -- answers that are lost --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["drop", "late503", "short"])
def test_a_write_whose_answer_was_lost_is_not_called_a_loss(fake: FakeGcs, store: ObjectStore, fault: str) -> None:
    fake.faults.want("POST", fault)
    first = store.create("x", b"1")
    assert store.get("x") == (found := store.get("x")) and (found.data, found.generation) == (b"1", first)
    fake.faults.want("POST", fault, fault)
    second = store.swap("x", b"2", first)
    assert (store.get("x").data, store.get("x").generation) == (b"2", second)
    fake.faults.want("POST", fault)
    assert store.put("x", b"3") == store.get("x").generation
    assert len(fake.bucket("bucket").objects) == 1


@pytest.mark.parametrize("fault", ["429", "503", "408", "500", "cut"])
def test_a_write_that_was_refused_for_the_moment_is_repeated(fake: FakeGcs, store: ObjectStore, fault: str) -> None:
    fake.faults.want("POST", fault, fault)
    generation = store.create("x", b"1")
    fake.faults.want("POST", fault)
    assert store.swap("x", b"2", generation) > generation


@pytest.mark.parametrize("fault", ["429", "503", "cut", "drop"])
def test_a_loser_stays_a_loser_whatever_happens_to_its_requests(fake: FakeGcs, store: ObjectStore, fault: str) -> None:
    """Also where it wanted to write the very bytes that stand there."""
    generation = store.create("x", b"same")
    fake.faults.want("POST", fault)
    with pytest.raises(ObjectExists, match="x is there already"):
        store.create("x", b"same")
    fake.faults.want("POST", fault)
    with pytest.raises(GenerationMismatch):
        store.swap("x", b"same", generation + 7)
    assert store.head("x").generation == generation  # type: ignore[union-attr]


def test_a_put_never_undoes_what_another_wrote_meanwhile(fake: FakeGcs, store: ObjectStore) -> None:
    """Every write names the generation that it replaces, so a late request is refused."""
    store.put("x", b"1")
    other = gcs_stores.opened(fake.url, store.url)
    other.put("x", b"2")
    store.put("x", b"3")
    assert store.get("x").data == b"3"
    assert fake.counts["insert"] == 4, "the third write was refused once, since it knew of the first only"


@pytest.mark.parametrize("fault", ["429", "503", "cut", "drop", "late503", "short"])
def test_reads_are_repeated(fake: FakeGcs, store: ObjectStore, fault: str) -> None:
    store.create("a/x", b"0123456789")
    for call, wanted in (
        (lambda: store.get("a/x").data, b"0123456789"),
        (lambda: store.read("a/x", 2, 3), b"234"),
        (lambda: store.list("a/"), ["a/x"]),
        (lambda: store.head("a/x").size, 10),  # type: ignore[union-attr]
    ):
        fake.faults.want("GET", fault, fault)
        assert call() == wanted
    fake.faults.want("DELETE", fault)
    store.delete("a/x")
    assert store.head("a/x") is None


def test_damaged_bytes_are_read_again(fake: FakeGcs, store: ObjectStore) -> None:
    store.create("x", b"right")
    standing = fake.bucket("bucket").objects["below/this/x"]
    wrong = {**standing.resource, "crc32c": "AAAAAA=="}
    fake.bucket("bucket").objects["below/this/x"] = type(standing)(b"right", wrong)
    impatient = gcs_stores.opened(fake.url, store.url, HASTY)
    with pytest.raises(RunStopped, match="checksum"):
        impatient.get("x")


# -- what people are told ---------------------------------------------------------------------------------------


def test_a_missing_bucket(fake: FakeGcs) -> None:
    with pytest.raises(RequestError, match="there is no bucket missing; make it with") as refused:
        open_store("gs://missing/x")
    sentence(refused.value)


def test_a_bucket_that_goes_away(fake: FakeGcs, store: ObjectStore) -> None:
    store.create("x", b"1")
    del fake.buckets["bucket"]
    for call in (lambda: store.get("x"), lambda: store.head("x"), lambda: store.put("x", b""), lambda: store.list("")):
        with pytest.raises(RunStopped, match="there is no bucket bucket"):
            call()


def test_permissions_that_are_lacking_are_named(fake: FakeGcs) -> None:
    fake.permissions = ("storage.objects.get", "storage.objects.list")
    with pytest.raises(RequestError, match=r"lacks storage.objects.create, storage.objects.delete") as refused:
        open_store("gs://bucket/x")
    assert "Storage Object User" in sentence(refused.value)
    assert open_store("gs://bucket/x", write=False).list("") == []
    fake.permissions = ("storage.objects.list",)
    with pytest.raises(RequestError, match=r"lacks storage.objects.get; give it the role Storage Object Viewer"):
        open_store("gs://bucket/x", write=False)


@pytest.mark.parametrize(("status", "words"), [("403", "permission was denied"), ("401", "gcloud auth application")])
def test_refusals_before_and_during_a_run(fake: FakeGcs, store: ObjectStore, status: str, words: str) -> None:
    fake.faults.want("GET", status)
    with pytest.raises(RequestError, match=words) as refused:
        open_store("gs://bucket/x")
    sentence(refused.value)
    fake.faults.want("POST", status)
    with pytest.raises(RunStopped, match=words) as stopped:
        store.create("x", b"")
    assert "below/this failed at `x`" in sentence(stopped.value)


def test_the_deadline(fake: FakeGcs, store: ObjectStore) -> None:
    impatient = gcs_stores.opened(fake.url, store.url, HASTY)
    fake.faults.rates = Rates(r503=1.0)
    with pytest.raises(RunStopped, match=r"no request succeeded for 0.3 s \(the last one: 503 injected") as stopped:
        impatient.create("x", b"")
    sentence(stopped.value)


def test_nobody_listens(store: ObjectStore) -> None:
    alone = gcs_stores.opened("http://127.0.0.1:9", "gs://bucket", HASTY)
    with pytest.raises(RunStopped, match="no request succeeded") as stopped:
        alone.get("x")
    sentence(stopped.value)


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with pytest.raises(RequestError, match="gcloud auth application-default login") as refused:
        open_store("gs://bucket/x")
    sentence(refused.value)


@pytest.mark.parametrize(
    "url", ["gs://", "gs:///x", "gs://Bucket", "gs://bucket//x", "gs://bucket/a b", "gs://bucket/.x"]
)
def test_urls_that_name_nothing(fake: FakeGcs, url: str) -> None:
    with pytest.raises(RequestError, match="write gs://bucket or gs://bucket/prefix"):
        open_store(url)


# -- the rest ---------------------------------------------------------------------------------------------------


def test_prefixes_are_stores_of_their_own(fake: FakeGcs) -> None:
    outer, inner, beside = (gcs_stores.opened(fake.url, f"gs://bucket{p}") for p in ("", "/a", "/ab"))
    inner.create("x", b"1")
    beside.create("x", b"2")
    assert (outer.list(""), inner.list(""), beside.list("")) == (["a/x", "ab/x"], ["x"], ["x"])
    assert open_store("gs://bucket/a/").url == "gs://bucket/a"
    assert inner.list("", after="w") == ["x"] and inner.list("", after="x") == []


def test_a_listing_of_several_pages(fake: FakeGcs, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.gcs.PAGE", 7)
    keys = [f"w/{n:03d}" for n in range(50)]
    for key in keys:
        store.create(key, b"")
    assert store.list("w/") == keys
    assert store.list("w/", after="w/019", limit=15) == keys[20:35]
    before = fake.counts["list"]
    assert store.list("w/", after="w/047") == keys[48:]
    assert fake.counts["list"] == before + 1, "what lies before the offset is not paged through"


def test_names_that_are_no_keys_are_passed_over(fake: FakeGcs, store: ObjectStore) -> None:
    other = gcs_stores.opened(fake.url, "gs://bucket")
    store.create("b", b"")
    template = fake.bucket("bucket").objects["below/this/b"]
    for name in ("below/this/", "below/this/a b", "below/this/.hidden", "below/this/c/"):
        resource = {**template.resource, "name": name}
        fake.bucket("bucket").objects[name] = type(template)(b"", resource)
    assert store.list("") == ["b"] and store.list("", limit=1) == ["b"]
    assert other.list("") == ["below/this/b"]


def test_objects_say_what_they_are(fake: FakeGcs, store: ObjectStore) -> None:
    store.create("x.json", b"{}")
    resource = fake.bucket("bucket").objects["below/this/x.json"].resource
    assert resource["contentType"] == "application/json" and resource["cacheControl"] == "no-store"


def test_another_process_s_objects_are_seen_at_once(fake: FakeGcs, store: ObjectStore) -> None:
    other = gcs_stores.opened(fake.url, store.url)
    for number in range(5):
        assert len(store.list("")) == number
        other.create(f"x{number}", b"")


def test_one_object_is_not_written_twice_in_a_second(fake: FakeGcs) -> None:
    store = open_store("gs://bucket/paced")
    assert write_pause(store) == 1.0
    store.put("x", b"1")
    store.put("y", b"1")
    store.put("x", b"2")
    assert store.get("x").data == b"2" and fake.bucket("bucket").hasty == []


def test_a_store_goes_through_pickle(fake: FakeGcs) -> None:
    store = open_store("gs://bucket/x")
    store.create("a", b"1")
    assert pickle.loads(pickle.dumps(store)).get("a").data == b"1"


def test_reading_needs_no_permission_to_write(fake: FakeGcs) -> None:
    open_store("gs://other").create("data.jsonl", b"{}")
    fake.permissions = ("storage.objects.get",)
    assert open_source("gs://other").get("data.jsonl").data == b"{}"
    with pytest.raises(ObjectMissing):
        open_source("gs://other").get("absent.jsonl")


def test_spawned_processes_race_for_one_store(fake: FakeGcs) -> None:
    store = open_store("gs://bucket/race")
    store.create("counter", b"0")
    spawn, keys = get_context("spawn"), [f"race/{n}" for n in range(20)]
    fake.faults.rates = Rates.some(0.02, latency=0.005)
    with ExitStack() as stack:
        start, answers = spawn.Barrier(3), []
        for name in range(3):
            receive, send = spawn.Pipe(duplex=False)
            child = spawn.Process(target=store_processes.race, args=(store.url, name, keys, 1, start, send))
            child.start()
            stack.callback(child.kill)
            answers.append(receive)
        won = [receive.recv() for receive in answers]
    assert sorted(key for each in won for key in each) == sorted(keys)
    assert all(store.get(key).data == b"%d" % name for name, each in enumerate(won) for key in each)
    assert int(store.get("counter").data) >= 3


def test_opening_asks_two_questions(fake: FakeGcs) -> None:
    """Not for the bucket's layout by gRPC, as gcsfs would."""
    open_store("gs://bucket/x")
    assert os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] == "false"
    assert fake.report()["counts"] == {"fault none": 2, "list": 1, "test_permissions": 1}


def test_a_big_object_comes_back(fake: FakeGcs, store: ObjectStore) -> None:
    data = os.urandom(5_000_001)
    fake.faults.want("POST", "drop")
    fake.faults.want("GET", "short")
    store.create("big", data)
    assert store.get("big").data == data and store.read("big", 4_999_999, 10) == data[4_999_999:]


def test_a_silent_service_is_given_up(fake: FakeGcs, store: ObjectStore) -> None:
    store.create("x", b"1")
    impatient = gcs_stores.opened(fake.url, store.url, HASTY)
    fake.faults.rates = Rates(latency=1e6)
    with pytest.raises(RunStopped, match="no request succeeded"):
        impatient.get("x")
