"""A worker process with made-up weights and a scripted engine, for tests in which it is ended."""

import argparse
import asyncio

from support.rollouts import load

from rollout.worker import Worker, parser
from schemas import keys
from schemas.manifest import RLSpec
from storage import process
from storage.open import open_store


def main(args: argparse.Namespace) -> None:
    store, key = open_store(args.root), keys.spec(args.base)
    spec = RLSpec.from_bytes(store.get(key).data, key)
    asyncio.run(Worker(store, args.base, spec, load=load, index=args.index).run())


if __name__ == "__main__":
    process.run_process(main, parser())
