"""Approval by a person: the flow run pauses in Prefect, its form or the command line answers, or nobody does."""

import argparse
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from flows.cli import main, parser
from schemas import keys
from schemas.errors import RunStopped
from schemas.promotion import Channel, GateDecision
from storage.open import open_store
from tasks import pause, questions, registry
from tasks.lease import is_held
from tasks.record import read_run

pytestmark = pytest.mark.usefixtures("prefect_server", "fakes")
Run = Callable[..., tuple[int, str, str]]
DEADLINE = 120.0


@pytest.fixture
def headrace(project: Path, root: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on the small project, whose gate asks a person."""
    monkeypatch.setattr(pause, "POLL_SECONDS", 0.2)
    config = project / "small.toml"
    config.write_text(config.read_text() + "approval = true\napproval_seconds = 100\n")

    def run(*argv: str) -> tuple[int, str, str]:
        code = main([*(str(config) if w == "CONFIG" else w for w in argv), "--root", root])
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


class Bystander(threading.Thread):
    """Waits until a flow run is paused, looks around, and then does something about it."""

    def __init__(self, root: str, act: Callable[[Any, Any], object]) -> None:
        super().__init__(daemon=True)
        self.root, self.act = root, act
        self.held, self.children, self.form = False, -1, {}
        self.start()

    def run(self) -> None:
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            flow_run = self.paused(client)
            self.held = is_held(open_store(self.root), keys.run_lease("small"))
            self.children = len(psutil.Process().children(recursive=True)) - BEFORE[0]
            self.act(client, flow_run)

    def paused(self, client: Any) -> Any:
        from prefect.client.schemas.filters import FlowRunFilter

        wanted = FlowRunFilter.model_validate({"state": {"type": {"any_": ["PAUSED"]}}})
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            for flow_run in client.read_flow_runs(flow_run_filter=wanted):
                keyset = flow_run.state.state_details.run_input_keyset
                if read_input(client, flow_run.id, keyset["schema"]):
                    self.form = read_input(client, flow_run.id, keyset["schema"])
                    return flow_run
            time.sleep(0.1)
        raise AssertionError("no flow run was paused")


BEFORE = [0]


@pytest.fixture(autouse=True)
def children_before(prefect_server: None) -> None:
    BEFORE[0] = len(psutil.Process().children(recursive=True))


def read_input(client: Any, flow_run: Any, key: str) -> dict[str, Any]:
    import httpx

    try:
        return client.request("GET", "/flow_runs/{id}/input/{key}", path_params={"id": flow_run, "key": key}).json()
    except httpx.HTTPStatusError:
        return {}


def history(root: str) -> list[tuple[str, str]]:
    found: Channel = registry.read(open_store(root), "small", "production")[0]
    return [(e.ref, e.approved_by) for e in found.history]


def test_yes_in_prefect_promotes(headrace: Run, root: str) -> None:
    bystander = Bystander(root, lambda client, run: client.resume_flow_run(run.id, {"approve": True, "name": "Ada"}))
    code, out, err = headrace("run", "CONFIG")
    assert code == 0 and "gate: small@3 (100.0%) beats" in out and "waiting at most 100 s for a person" in out, err
    assert history(root) == [("small@3", "Ada")]
    bystander.join(DEADLINE)
    assert bystander.held and bystander.children == 0
    assert {"approve", "name"} <= bystander.form["properties"].keys()


def test_no_in_prefect_refuses_and_finishes_the_run(headrace: Run, root: str) -> None:
    Bystander(root, lambda client, run: client.resume_flow_run(run.id, {"approve": False, "name": "Ada"}))
    code, out, _ = headrace("run", "CONFIG")
    assert code == 0 and "not promoted: Ada did not agree" in out and history(root) == []
    assert "nothing to do" in headrace("run", "CONFIG")[1]


def test_the_command_line_answers_a_run_that_waits(headrace: Run, root: str, capsys: pytest.CaptureFixture) -> None:
    told: list[int] = []

    def tell(client: Any, flow_run: Any) -> None:
        from flows.commands import promote

        with pytest.raises(RunStopped, match="run small waits for a person"):
            promote.main(words("promote", "small", "--root", root))
        told.append(promote.main(words("promote", "small", "--approve", "Bob", "--root", root)) or 0)

    Bystander(root, tell)
    code, out, err = headrace("run", "CONFIG")
    assert code == 0 and told == [0] and history(root) == [("small@3", "Bob")], err
    assert "run small waits for it and is told: Bob approves small@3" in out


def words(*argv: str) -> argparse.Namespace:
    return parser().parse_args(argv)


def test_a_person_declines_at_the_terminal_and_the_decision_says_who_and_why(headrace: Run, root: str) -> None:
    seen: list[dict[str, Any]] = []

    def tell(client: Any, flow_run: Any) -> None:
        from flows.commands import promote
        from tasks import status

        store = open_store(root)
        seen.extend([status.status(store, "small"), *status.runs(store)])
        promote.main(words("promote", "small", "--decline", "Bob", "--reason", "too early", "--root", root))

    Bystander(root, tell)
    code, out, err = headrace("run", "CONFIG")
    assert code == 0 and "told: Bob does not approve small@3 (too early)" in out, err
    assert "not promoted: Bob did not agree: too early" in out and history(root) == []
    for one in seen:
        assert one["state"] == "running" and one["waits"]["candidate"] == "small@3"
        assert 0 < one["waits"]["until"] - one["waits"]["asked"] <= 100
    base = gate_of(root)
    (key,) = open_store(root).list(f"{base}/decisions/")
    decision = GateDecision.from_bytes(open_store(root).get(key).data, key)
    assert not decision.promoted and decision.checks[-1].text == "Bob did not agree: too early"
    code, out, _ = headrace("status", "small")
    assert code == 0 and "waits" not in out


def test_status_says_that_a_run_waits_for_a_person(headrace: Run, root: str, capsys: pytest.CaptureFixture) -> None:
    shown: list[str] = []

    def look(client: Any, flow_run: Any) -> None:
        from flows.commands import status
        from tasks.status import runs
        from tasks.status import status as one

        store = open_store(root)
        shown.extend([status._text(one(store, "small")), status._list(runs(store), root)])
        client.resume_flow_run(flow_run.id, {"approve": False, "name": "Ada", "reason": "no"})

    Bystander(root, look)
    code, out, _ = headrace("run", "CONFIG")
    assert code == 0 and "not promoted: Ada did not agree: no" in out
    alone, listed = shown
    assert "small: running, waits for a person since 20" in alone and "(until 20" in alone
    assert "`headrace promote small@3 --approve NAME` (or --decline NAME)" in alone
    assert listed.count("\n") == 0 and "small, waits for a person since 20" in listed


def test_nobody_answers_and_the_same_run_asks_again(headrace: Run, root: str) -> None:
    code, _, err = headrace("run", "CONFIG", "--set", "promotion.approval_seconds=0.5")
    assert code == 1 and err.startswith("headrace: nobody approved small@3 within 0 s") and err.count("\n") == 1
    record = read_run(open_store(root), "small")
    assert record is not None and record.state == "failed" and "--approve NAME" in record.reason
    assert history(root) == []
    Bystander(root, lambda client, run: client.resume_flow_run(run.id, {"approve": True, "name": "Ada"}))
    code, out, err = headrace("run", "CONFIG", "--set", "promotion.approval_seconds=600")
    assert code == 0 and "finished before" in out and history(root) == [("small@3", "Ada")], err


def test_an_answer_that_a_dead_driver_left_counts(headrace: Run, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(*_: Any, **__: Any) -> None:
        questions.answer(open_store(root), gate_of(root), agreed=True, name="Cleo")
        raise RunStopped("the driver died")

    with monkeypatch.context() as patch:
        patch.setattr(pause, "_wait", answered)
        assert headrace("run", "CONFIG")[0] == 1
    assert history(root) == []
    code, out, err = headrace("run", "CONFIG")
    assert code == 0 and "waiting at most" not in out and history(root) == [("small@3", "Cleo")], err


def test_a_prefect_that_goes_away_at_the_answer_is_told_and_the_answer_counts(
    headrace: Run, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> None:
        raise httpx.ConnectError("connection refused")

    def answered(*_: Any) -> None:
        questions.answer(open_store(root), gate_of(root), agreed=True, name="Dee")

    with monkeypatch.context() as patch:
        patch.setattr(pause, "_wait", answered)
        patch.setattr(pause._Pause, "leave", gone)
        code, _, err = headrace("run", "CONFIG")
    assert code == 1 and "Prefect's server failed while small@3 waited for a person (connection refused)" in err
    assert "Traceback" not in err and history(root) == []
    assert headrace("run", "CONFIG")[0] == 0 and history(root) == [("small@3", "Dee")]


def gate_of(root: str) -> str:
    (key,) = [k for k in open_store(root).list("runs/small/gates/") if k.endswith("/approval.json")]
    return key.removesuffix("/approval.json")


def test_a_cancelled_flow_run_stops_waiting(headrace: Run, root: str) -> None:
    from prefect.states import Cancelled

    Bystander(root, lambda client, run: client.set_flow_run_state(run.id, Cancelled(), force=True))
    code, _, err = headrace("run", "CONFIG")
    assert code == 1 and "was set to Cancelled while it waited for a person" in err, err
    assert history(root) == []


def test_a_lost_lease_stops_waiting(headrace: Run, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks import lease

    monkeypatch.setattr(lease, "SECONDS", 1.0)
    monkeypatch.setattr(lease.acquire, "__kwdefaults__", {**lease.acquire.__kwdefaults__, "seconds": 1.0})
    store = open_store(root)
    Bystander(root, lambda client, run: store.put(keys.run_lease("small"), store.get(keys.run_lease("small")).data))
    code, _, err = headrace("run", "CONFIG")
    assert code == 1 and "another process has taken over run small" in err and history(root) == []


def test_without_a_flow_the_command_says_how_to_approve(headrace: Run, root: str) -> None:
    assert headrace("run", "CONFIG", "--set", "promotion.approval_seconds=0.2")[0] == 1
    code, _, err = headrace("promote", "small")
    assert code == 1 and err.endswith("needs a person: `headrace promote small@3 --approve NAME` (or --decline NAME)\n")
    for wrong in (["--approve", " "], ["--decline", "Ada"], ["--reason", "why"], ["--approve", "A", "--decline", "B"]):
        assert headrace("promote", "small", *wrong)[0] == 2
    code, _, err = headrace("promote", "small", "--decline", "Bob", "--reason", "slow")
    assert code == 1 and err == "headrace: not promoted: Bob did not agree: slow\n" and history(root) == []
    code, out, _ = headrace("promote", "small", "--approve", "Ada")
    assert code == 0 and "ok      approval     Ada agreed" in out and "promoted: small@3" in out
    assert history(root) == [("small@3", "Ada")]
    assert "nothing to do" in headrace("run", "CONFIG", "--set", "promotion.approval_seconds=0.2")[1]
    assert headrace("promote", "small", "--channel", "candidate")[0] == 2
    code, out, _ = headrace("promote", "small", "--channel", "staging", "--approve", "Ada", "--json")
    assert code == 0 and json.loads(out)["promoted"]
    assert registry.read(open_store(root), "small", "staging")[0].history[-1].ref == "small@3"
