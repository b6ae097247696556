"""The example of a program end to end: what reinforcement adds to its warm-up, on problems that it has not seen."""

from pathlib import Path

import pytest
from support import recipes
from support.recipes import PROMOTED, WARM_UP


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_agent_that_exists_already_learns(tmp_path: Path) -> None:
    learned = recipes.run("program", tmp_path / "root")
    assert learned.sound and learned.promoted
    assert learned.low[PROMOTED] > learned.high[WARM_UP]
    assert learned.success[PROMOTED] > learned.success[WARM_UP] + 0.25
