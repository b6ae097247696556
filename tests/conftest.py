"""What holds for every test."""

import logging

import absl.logging

# Prefect's logging set-up closes every handler there is; absl's (imported by orbax) would close pytest's stderr with it.
absl.logging.PythonHandler.close = logging.StreamHandler.close  # type: ignore[method-assign]
