"""The user's own classes and functions, named `module:Name`, from the configuration's folder.

A file is loaded by its path under a private module name, so that it can shadow nothing of ours. The folder goes to the
end of the import path, for what the file itself imports.
"""

import hashlib
import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from schemas.errors import RequestError

_lock = threading.RLock()
"""Two threads must not see a half-loaded module."""


def load_object(name: str, folder: str, field: str) -> Any:
    """What `module:Name` names. `field` is the setting that holds the name, for complaints.

    Raises RequestError where the name is misshapen, or file or object are missing, or the file fails to load.
    """
    module, colon, attribute = name.partition(":")
    parts = module.split(".")
    if not colon or not attribute.isidentifier() or not all(p.isidentifier() for p in parts):
        raise RequestError(
            f"{field} = `{name}` is not of the form `module:Name` (a file in the configuration's folder)"
        )
    path = Path(folder, *parts).with_suffix(".py")
    if not path.is_file():
        raise RequestError(f"{field} = `{name}`: there is no file {path}; create it or correct the name")
    with _lock:
        loaded = _load(path.resolve(), Path(folder).resolve(), field)
    found = getattr(loaded, attribute, None)
    if found is None:
        raise RequestError(f"{field} = `{name}`: {path} defines no `{attribute}`")
    return found


def _load(path: Path, folder: Path, field: str) -> ModuleType:
    name = f"_headrace_user_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except RequestError:  # the file's own sentence
        del sys.modules[name]
        raise
    except Exception as error:
        del sys.modules[name]
        raise RequestError(f"{field}: {path} can't be loaded ({type(error).__name__}: {error})") from error
    return module
