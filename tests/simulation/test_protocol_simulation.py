"""The protocol under kills, freezes, zombies and a failing store: no seed may break an invariant."""

import multiprocessing
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest
from support.simulation import run_seeds

FAST, ALL, BLOCK = 200, 5000, 200
ACCIDENTS = ("L killed", "L frozen", "w killed", "w frozen", "store failed", "answer lost", "shard damaged", "fenced")


def test_no_seed_breaks_an_invariant():
    counts = run_seeds(0, FAST)
    assert all(counts[accident] for accident in ACCIDENTS), counts


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FAST, ALL, BLOCK))
def test_no_seed_of_thousands_breaks_an_invariant(first):
    cores = os.cpu_count() or 1
    share = -(-BLOCK // cores)
    starts = range(first, first + BLOCK, share)
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        counts = pool.map(run_seeds, starts, [min(start + share, first + BLOCK) for start in starts])
        total = sum(counts, Counter())
        assert total["finished"] >= BLOCK
