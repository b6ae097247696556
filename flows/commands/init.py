"""`headrace init`: a folder with a configuration, an environment, tasks and demonstrations that run as they are."""

import argparse
from importlib.resources import files
from pathlib import Path

from flows.scaffold import make_data
from schemas.errors import RequestError

FILES = ("run.toml", "environment.py", "make_data.py")


def main(args: argparse.Namespace) -> None:
    folder = Path(args.folder).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if found := sorted(item.name for item in folder.iterdir()):
            raise RequestError(f"{folder} is not empty ({found[0]}): give a folder that is empty or does not exist yet")
        for name in FILES:
            (folder / name).write_bytes(files("flows.scaffold").joinpath(name).read_bytes())
        make_data.main(folder / "data")
    except OSError as error:
        raise RequestError(f"{folder} can't be written ({error.strerror or error}): give another folder") from error
    config = folder / "run.toml"
    print(f"{folder} holds run.toml, environment.py, and make_data.py, which made the files in data/. Next:")
    print(f"  headrace validate {config}\n  headrace rollout {config} --policy gold\n  headrace run {config}")
