"""`headrace serve`: fire runs on a schedule from this process, until it is stopped."""

import argparse

from flows import schedule


def main(args: argparse.Namespace) -> None:
    when = schedule.When(args.cron, args.timezone, args.evaluate)
    schedule.serve(args.config, args.overrides, args.root, when)
