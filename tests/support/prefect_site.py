"""A real Prefect server and real process workers, each as if on a machine of its own."""

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import State

from support.real_run import until

TREE = Path(__file__).parents[2]
PREFECT = str(Path(sys.executable).with_name("prefect"))
QUIET = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1", "PREFECT_LOGGING_LEVEL": "INFO"}


@dataclass
class Machine:
    """A home and a working folder that nothing else uses; all it shares with others is named in its environment."""

    folder: Path
    shared: dict[str, str]
    running: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "HEADRACE", "XDG"))}
        return kept | QUIET | {"HOME": str(self.folder), "PYTHONPATH": str(TREE)} | self.shared

    def start(self, name: str, *argv: str) -> "subprocess.Popen[bytes]":
        """Start a command here, as if at a terminal of its own; what it says goes to a file of that name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.log").open("wb") as out:
            process = subprocess.Popen(
                argv, stdout=out, stderr=out, cwd=self.folder, env=self.environment, process_group=0
            )
        self.running.append(process)
        return process

    def call(self, *argv: str) -> "subprocess.CompletedProcess[str]":
        """Run a command here to its end."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=300, cwd=self.folder, env=self.environment
        )

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def stop(self) -> None:
        """End what was started here."""
        for process in reversed(self.running):
            end(process)


@dataclass(frozen=True)
class Site:
    """The server at `api`, as its client sees it."""

    api: str

    @contextmanager
    def client(self) -> Generator[SyncPrefectClient]:
        with temporary_settings({PREFECT_API_URL: self.api}), get_client(sync_client=True) as client:
            yield client

    def ask(self, deployment: str, name: str, **parameters: Any) -> FlowRun:
        """A flow run of a deployment, by hand."""
        with self.client() as client:
            found = client.read_deployment_by_name(deployment)
            return client.create_flow_run_from_deployment(found.id, name=name, parameters=parameters)

    def runs(self, deployment: str) -> list[FlowRun]:
        """The flow runs of a deployment, oldest first."""
        with self.client() as client:
            chosen = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[
                client.read_deployment_by_name(deployment).id
            ]))  # fmt: skip
            found = client.read_flow_runs(flow_run_filter=chosen)
        return sorted(found, key=lambda run: str(run.created))

    def state(self, run: FlowRun) -> str:
        with self.client() as client:
            found = client.read_flow_run(run.id).state
        return found.type.value if found else ""

    def cancel(self, run: FlowRun) -> None:
        with self.client() as client:
            client.set_flow_run_state(run.id, State(type=StateType.CANCELLING))


@contextmanager
def server(folder: Path) -> Iterator[Site]:
    """`prefect server start` with a database of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    machine = Machine(folder, {"PREFECT_HOME": str(folder / "prefect")})
    process = machine.start("server", PREFECT, "server", "start", "--no-ui", "--host", "127.0.0.1", "--port", port)

    def healthy() -> bool:
        assert process.poll() is None, machine.said("server")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=5).close()
        except (urllib.error.URLError, OSError):
            return False
        return True

    try:
        until(healthy, "the server's first answer", 300)
        yield Site(f"http://127.0.0.1:{port}/api")
    finally:
        machine.stop()


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ask a process to end, and see to it."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
