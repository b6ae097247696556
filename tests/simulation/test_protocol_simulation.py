"""The protocol under kills, freezes and zombies: no seed may break an invariant."""

import pytest
from support.simulation import Simulation


@pytest.mark.parametrize("block", range(10))
def test_no_seed_breaks_an_invariant(block):
    for seed in range(block * 20, block * 20 + 20):
        Simulation(seed).run()
