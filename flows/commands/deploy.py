"""`headrace deploy`: create a scheduled deployment on a work pool, for workers of Prefect's to carry out."""

import argparse

from flows import schedule


def main(args: argparse.Namespace) -> None:
    name = schedule.deploy(args.config, args.overrides, args.root, args.cron, args.work_pool)
    print(f"deployed {name}: start a worker with `prefect worker start --pool {args.work_pool}`")
