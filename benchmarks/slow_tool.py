"""The calculator, half a second late: what `staleness.py` lays beside the example it runs."""

import asyncio
from typing import Any

from rollout.calculator import CalculatorTool

SECONDS = 0.5


class SlowCalculator(CalculatorTool):
    """Each call waits before it is answered, as tools elsewhere do."""

    async def apply(self, expression: str) -> Any:
        await asyncio.sleep(SECONDS)
        return await super().apply(expression)
