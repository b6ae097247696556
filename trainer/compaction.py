"""Compaction beside the learner: a thread copies new ledger records into the catalog and their figures into Parquet.

Only audits and people read these, so nothing waits for them and a copy that fails is told and made up for by the next.
"""

import threading
from collections.abc import Callable

import pyarrow as pa

from schemas.errors import HeadraceError
from storage.catalog_copy import compact
from storage.objects import ObjectStore
from storage.step_metrics import write_metrics


class Compactor:
    """Call it after a checkpoint; `finish` waits for the copy at the end of a run."""

    def __init__(self, store: ObjectStore, base: str, report: Callable[..., None]) -> None:
        self._store, self._base, self._report = store, base, report
        self._thread: threading.Thread | None = None

    def __call__(self) -> None:
        """Start copying what the ledger has beyond the catalog, unless a copy is being made."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._copy, name="compaction", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Copy to the head of the ledger before returning."""
        if self._thread is not None:
            self._thread.join()
        self._copy()

    def _copy(self) -> None:
        try:
            compact(self._store, self._base)
            write_metrics(self._store, self._base)
        except (HeadraceError, pa.ArrowException, OSError) as error:
            self._report("log", message=f"the ledger was not copied into catalog and metrics: {error}")
