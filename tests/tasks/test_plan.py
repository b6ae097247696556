"""What belongs to a stage's key and what does not."""

from pathlib import Path

from tasks import plan
from tasks.request import Request, load


def read(project: Path, *overrides: str) -> Request:
    return load(str(project / "small.toml"), overrides, root="memory://plan")


def rl(request: Request, **changes: str) -> str:
    digests = {"tasks": "t", "environment": "", "initial": "w"} | changes
    return plan.rl_key(request.config, **digests, seed=request.seed)


def warm(request: Request, data: str = "d", parent: str = "") -> str:
    stage = request.config.warm_up[0]
    return plan.warm_up_key(request.config, stage, data=data, parent=parent, seed=request.warm_up_seed)


def test_an_rl_setting_changes_rl_and_not_the_warm_up(project: Path) -> None:
    before, after = read(project), read(project, "rl.group_size=4")
    assert rl(before) != rl(after)
    assert warm(before) == warm(after)


def test_where_and_how_fast_is_outside_the_key(project: Path) -> None:
    mine = ("rollout.workers=5", "rollout.slots=3", "rl.steps=9", "rl.cores=[0]", "rl.mesh.data=2", "rl.processes=2")
    free = read(project, *mine, "root=x", "evaluation.samples=3")
    assert rl(read(project)) == rl(free)


def test_inputs_and_seed_are_inside(project: Path) -> None:
    request = read(project)
    assert rl(request, tasks="u") != rl(request) != rl(request, initial="v") != rl(request, environment="e")
    assert warm(request, data="e") != warm(request) != warm(request, parent="p")
    assert warm(read(project, "seed=3")) != warm(request)
    assert rl(read(project, "seed=3")) != rl(request)


def test_the_name_seeds_rl_but_not_the_warm_up(project: Path) -> None:
    one, two = read(project), read(project, "name=other")
    assert rl(one) != rl(two) and warm(one) == warm(two)
    assert rl(read(project, "seed=1")) == rl(read(project, "seed=1", "name=other"))


def test_adapters_change_the_stages_that_have_something_to_adapt(project: Path) -> None:
    whole, adapted, ranked = read(project), read(project, "lora.rank=4"), read(project, "lora.rank=5")
    assert len({rl(whole), rl(adapted), rl(ranked)}) == 3
    assert len({warm(r, parent="p") for r in (whole, adapted, ranked)}) == 3
    assert warm(whole) == warm(adapted), "from scratch all weights are trained"
