"""What is measured must not have been trained on, and what decides must not be reported. Otherwise figures say nothing.

Task sets share no task, by id or by prompt. Demonstrations may ask what training tasks ask, and nothing that is
measured. `docs/data.md` has the table. `tasks.ancestors` does the same for what a run starts from.
"""

from collections.abc import Iterable, Mapping
from itertools import combinations

from schemas.errors import RequestError
from tasks.fingerprints import DataSet, kind_of, shared

TRAINED = "rl.tasks"


def check_leaks(sets: Mapping[str, DataSet]) -> None:
    """`sets`: setting → its file. RequestError names the first two that share what they must not, and the task."""
    for first, second in combinations(sets, 2):
        if _may_share(first, second):
            continue
        if found := shared(sets[first], sets[second]):
            raise RequestError(
                f"{sets[first].words} and {sets[second].words} share {found}: what is measured must not be trained on, "
                f"and what is reported must not decide; take it out of one of them"
            )


def measured(sets: Mapping[str, DataSet]) -> dict[str, DataSet]:
    """The sets that weights are played on."""
    return {s: found for s, found in sets.items() if s != TRAINED and kind_of(s) == "tasks"}


def deciding(sets: Mapping[str, DataSet], suites: Iterable[str]) -> dict[str, DataSet]:
    """The sets by which the gate compares a candidate with the champion. `suites`: those of `no_regression`."""
    wanted = {"promotion.tasks", *(f"evaluation.suites.{name}" for name in suites)}
    return {s: found for s, found in sets.items() if s in wanted}


def _may_share(first: str, second: str) -> bool:
    """Two sets that are both trained on."""
    return all(setting == TRAINED or kind_of(setting) == "warm_up" for setting in (first, second))
