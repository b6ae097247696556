"""The garbage collector of a process that plays thousands of episodes, which it would look through again and again.

Python looks for cycles after every 700 new containers, and now and then among all there are. Waiting episodes are many
containers that live for seconds, and imports are many more that live for ever: looking at all of them holds up every
episode for a tenth of a second.
"""

import gc

YOUNG = 10_000
"""New containers between two looks for cycles among them."""


def spare() -> None:
    """Never look through what is there by now, and seldom through the rest. Called once, after the imports."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 10, 10)
