"""`headrace run`: from a configuration to a promoted checkpoint, or on from where an earlier call came.

A finished run is recognised from its manifests before Prefect or JAX is imported.
"""

import argparse
import sys
from contextlib import ExitStack

from schemas.errors import RequestError
from tasks import record, session, worker_pool
from tasks.environment import check_environment
from tasks.lessons_proof import check_lessons
from tasks.request import Request, load
from tasks.start import check_start
from tasks.summary import summary
from tasks.survey import survey


def main(args: argparse.Namespace) -> None:
    request = load(args.config, args.overrides, root=args.root, run=args.run)
    if request.store.url.startswith("memory://"):
        raise RequestError(
            f"{request.store.url} lives in one process and a run needs several: give a folder or a store"
        )
    check_start(request)
    manifest = record.prepare(request)
    found = survey(request, manifest)
    if found.finished:
        _close(request, manifest)
        print(f"run {request.run} is finished: nothing to do")
    else:
        check_environment(request)
        if any(stage.state != "finished" for stage in found.warm_ups):
            check_lessons(request)
        _drive(request, manifest)
        found = survey(request, record.read_run(request.store, request.run) or manifest)
    print("\n".join(summary(request.run, found)))


def _close(request: Request, manifest: record.RunManifest) -> None:
    """A driver that was killed after the last stage could not say that the run is finished."""
    if manifest.state != "finished":
        record.change(request.store, request.run, state="finished", reason="")


def _drive(request: Request, manifest: record.RunManifest) -> None:
    from flows import local_server, prefect_environment

    prefect_environment.prepare(quiet=True)
    local_server.check_given()
    worker_pool.check(request.config)
    with ExitStack() as stack:
        sink = _sink(request.run, stack)
        here = stack.enter_context(session.opened(request, manifest, sink))
        stack.callback(here.stop.set)
        here.tell("run", {"event": "log", "message": f"{request.run} in {request.store.url}"})
        from flows.post_training import post_training

        stack.enter_context(local_server.prefect_server())
        post_training(request.config, str(request.folder), request.store.url, request.run)


def _sink(run: str, stack: ExitStack) -> session.Sink:
    """A live view on a terminal, plain lines elsewhere."""
    if sys.stdout.isatty():
        from flows.live import LiveView

        return stack.enter_context(LiveView(run))
    from flows.lines import Lines

    return Lines()
