"""A Prefect server for one run, where none was set up: nothing has to be started beforehand.

It is a child in a process group of its own, so that a Ctrl-C reaches only the driver, and it dies with the driver
however that ends. Run as a module it is that child.
"""

import argparse
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager

from schemas.errors import RequestError, RunStopped
from storage.process import run_process

SECONDS = 240.0
"""How long the server may take to start; the first start on a machine creates its database."""


@contextmanager
def prefect_server() -> Generator[None]:
    """Let Prefect talk to the server that the user has set up, else to one of our own for the time of the block."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    if check_given():
        yield
        return
    port = _free_port()
    argv = [sys.executable, "-P", "-m", "flows.local_server", "--port", str(port)]
    child = subprocess.Popen(argv, process_group=0, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_healthy(child, port)
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}):
            yield
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()


def check_given() -> bool:
    """Whether the user has set up a server; RequestError where it doesn't answer."""
    from prefect.settings import get_current_settings

    url = get_current_settings().api.url
    if url:
        check_reachable(url)
    return bool(url)


def check_reachable(url: str) -> None:
    """RequestError where nothing answers at the address of a Prefect server, whatever it would answer."""
    try:
        urllib.request.urlopen(f"{url}/health", timeout=15).close()
    except urllib.error.HTTPError:
        return
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise RequestError(
            f"no Prefect server answers at {url} ({reason}): start it, or unset PREFECT_API_URL"
        ) from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_healthy(child: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and child.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RunStopped(
        f"Prefect's server did not start (exit code {child.poll()}): start one with `prefect server start` and set "
        f"PREFECT_API_URL to its address"
    )


def _main(args: argparse.Namespace) -> None:
    os.environ |= {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
    import uvicorn

    app = "prefect.server.api.server:create_app"
    uvicorn.run(app, factory=True, host="127.0.0.1", port=args.port, log_level="error", lifespan="on")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    run_process(_main, parser)
