"""`headrace export WHAT --out DIR`: a checkpoint or a champion as a Hugging Face folder with a model card."""

import argparse
import json
from pathlib import Path

from storage.open import open_store
from tasks.export import export
from tasks.export_source import find_source
from tasks.request import root_url


def main(args: argparse.Namespace) -> None:
    store = open_store(root_url(args.root), write=False)
    source = find_source(store, args.what)
    files = export(store, source, Path(args.out).expanduser())
    if args.json:
        plain = {"checkpoint": source.ref, "weights_sha256": source.weights.sha256, "out": args.out, "files": files}
        print(json.dumps(plain, indent=2))
    else:
        print(f"{source.ref} exported to {args.out}: weights {source.weights.sha256[:12]}, {len(files)} files")
