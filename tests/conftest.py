"""What holds for every test."""

import logging

import absl.logging

# Prefect's logging set-up closes every handler; absl's (orbax imports it) would close pytest's stderr with it.
absl.logging.PythonHandler.close = logging.StreamHandler.close  # type: ignore[method-assign]
