"""`headrace work RUN`: workers of this machine join a run that is driven elsewhere, by the store alone."""

import argparse
import threading

from flows.worker_lines import WorkerLines
from schemas.errors import RequestError
from storage.open import open_store
from tasks import join
from tasks.request import root_url


def main(args: argparse.Namespace) -> None:
    if args.workers < 1:
        raise RequestError(f"--workers {args.workers}: give at least 1")
    store = open_store(root_url(args.root))
    join.check_joinable(store, args.run, args.folder)
    sink, stop = WorkerLines(print), threading.Event()
    try:
        why = join.join(store, args.run, sink=sink, stop=stop, workers=args.workers, folder=args.folder)
    except KeyboardInterrupt:
        why = "asked to leave: what was in flight is free for other workers"
    print(f"left run {args.run}: {why}")
