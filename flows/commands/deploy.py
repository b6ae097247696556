"""`headrace deploy`: create a deployment on a work pool, for workers of Prefect's to carry out."""

import argparse

from flows import schedule


def main(args: argparse.Namespace) -> None:
    when = schedule.When(args.cron, args.timezone, args.evaluate)
    name = schedule.deploy(args.config, args.overrides, args.root, when, args.work_pool, args.variables)
    fires = f"fires at `{args.cron}` ({args.timezone or 'UTC'})" if args.cron else "fires when asked to"
    print(f"deployed {name}: it {fires}; start a worker with `prefect worker start --pool {args.work_pool}`,")
    print(f"or fire it by hand with `prefect deployment run {name}`")
