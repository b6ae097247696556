"""A worker's garbage collector: what was there stays out of it, and cycles of episodes are still found."""

import subprocess
import sys

SCRIPT = """
import gc, weakref
from rollout import garbage

class Node:
    pass

garbage.spare()
assert gc.get_freeze_count() > 1000
dead = []
for _ in range(3 * garbage.YOUNG):
    node = Node()
    node.own = node
    dead.append(weakref.ref(node))
assert sum(ref() is None for ref in dead) > garbage.YOUNG
"""


def test_cycles_are_found_among_what_is_new() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
