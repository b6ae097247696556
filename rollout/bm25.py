"""Okapi BM25 over a small corpus in memory.

Robertson & Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009); the weight of a term is that of
Lucene, which is never negative.
"""

import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

SATURATION = 1.2
"""k1: how soon further occurrences of a term stop counting."""
LENGTH = 0.75
"""b: how much long documents are marked down."""


def words(text: str) -> list[str]:
    """The terms of a text: runs of letters and digits, in one case."""
    return re.findall(r"\w+", text.casefold())


class Index:
    """Documents by number, in the order given."""

    def __init__(self, documents: Sequence[str]) -> None:
        counts = [Counter(words(d)) for d in documents]
        lengths = [c.total() for c in counts]
        mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
        self._shares: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for number, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            norm = SATURATION * (1 - LENGTH + LENGTH * length / mean)
            for word, n in count.items():
                self._shares[word].append((number, n * (SATURATION + 1) / (n + norm)))
        self._size = len(documents)

    def best(self, query: str, most: int) -> list[tuple[int, float]]:
        """(document, score) of at most `most` documents that share a word with the query, best first."""
        scores: dict[int, float] = defaultdict(float)
        for word in dict.fromkeys(words(query)):
            found = self._shares.get(word, ())
            weight = math.log(1 + (self._size - len(found) + 0.5) / (len(found) + 0.5))
            for number, share in found:
                scores[number] += weight * share
        return heapq.nsmallest(most, scores.items(), key=lambda pair: (-pair[1], pair[0]))
