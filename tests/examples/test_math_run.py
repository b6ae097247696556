"""The math example end to end: what reinforcement adds to its warm-up, on problems that it has not seen."""

from pathlib import Path

import pytest
from support import recipes
from support.recipes import PROMOTED, WARM_UP


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_agent_learns_to_call_its_tools(tmp_path: Path) -> None:
    learned = recipes.run("math", tmp_path / "root")
    assert learned.sound and learned.promoted
    assert learned.low[PROMOTED] > learned.high[WARM_UP]
    assert learned.success[PROMOTED] > learned.success[WARM_UP] + 0.1
