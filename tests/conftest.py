"""What holds for every test."""

import logging
import os
from pathlib import Path

import absl.logging
from hypothesis import settings

# Prefect's logging set-up closes every handler; absl's (orbax imports it) would close pytest's stderr with it.
absl.logging.PythonHandler.close = logging.StreamHandler.close  # type: ignore[method-assign]

# Most of the time of a test of arrays is the compilation of programs that another test, process or run has compiled.
# Set before anything imports jax; children have it from their environment.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# How long an example takes says how busy the machine is.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
