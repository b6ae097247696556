"""`headrace promote RUN[@STEP]`: the gate compares a checkpoint with the champion; refused is exit code 1."""

import argparse

from flows import beside
from schemas.errors import RunStopped
from storage.open import open_store
from tasks.checkpoints import find
from tasks.request import root_url


def main(args: argparse.Namespace) -> None:
    checkpoint = find(open_store(root_url(args.root)), args.checkpoint)
    decision = beside.promote(checkpoint)
    if not decision.promoted:
        raise RunStopped(f"not promoted: {decision.reason}")
    print(f"promoted: {decision.reason}")
