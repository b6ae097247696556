"""`headrace validate`: check a configuration and everything it names; nothing is written."""

import argparse

from storage.objects import write_pause
from tasks import traffic
from tasks.environment import check_environment
from tasks.record import read_run
from tasks.request import load
from tasks.start import check_start


def main(args: argparse.Namespace) -> None:
    request = load(args.config, args.overrides, root=args.root)
    check_start(request)
    read_run(request.store, request.run)
    check_environment(request)
    print(f"{args.config} is valid: run {request.run} in {request.store.url}")
    if pause := write_pause(request.store):
        print(traffic.sentence(traffic.estimate(request.config, traffic.parameters(request), pause=pause)))
