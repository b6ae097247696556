"""What can go wrong between a client and Google Cloud Storage, by chance (seeded) or as a test asks for it."""

import random
import threading
import time
from dataclasses import asdict, dataclass, fields

KINDS = ("429", "503", "cut", "drop", "late503", "short")
"""`429`, `503`: refused, nothing was done. `cut`: the connection ends before anything was done. `drop`: done, but the
answer is lost. `late503`: it was done, the answer says 503. `short`: half of the answer's body comes."""


@dataclass(frozen=True)
class Rates:
    """The chance of each kind for each request, and the longest extra latency in seconds."""

    latency: float = 0.0
    r429: float = 0.0
    r503: float = 0.0
    cut: float = 0.0
    drop: float = 0.0
    late503: float = 0.0
    short: float = 0.0

    @classmethod
    def some(cls, rate: float, latency: float = 0.0) -> "Rates":
        """Every kind with the same chance."""
        return cls(latency, *(rate for _ in KINDS))

    def plain(self) -> dict[str, float]:
        return asdict(self)


class Faults:
    """Decides what happens to each request. Asked-for faults come first, each to the next request of its method."""

    def __init__(self, rates: Rates = Rates(), seed: int = 0) -> None:
        self.rates = rates
        self._random = random.Random(seed)
        self._wanted: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def want(self, method: str, *kinds: str) -> None:
        """Let the next requests of this method meet these kinds, in turn. A number is answered as that status."""
        self._wanted += [(method, kind) for kind in kinds]

    def strike(self, method: str) -> str:
        """What befalls this request, after its latency; empty: nothing."""
        with self._lock:
            pause = self._random.random() * self.rates.latency
            kind = self._asked_for(method) or self._by_chance()
        if pause:
            time.sleep(pause)
        return kind

    def _asked_for(self, method: str) -> str:
        for i, (wanted, kind) in enumerate(self._wanted):
            if wanted == method:
                del self._wanted[i]
                return kind
        return ""

    def _by_chance(self) -> str:
        draw = self._random.random()
        for kind, field in zip(KINDS, fields(Rates)[1:], strict=True):
            draw -= getattr(self.rates, field.name)
            if draw < 0:
                return kind
        return ""
