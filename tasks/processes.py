"""The commands of our processes, in one place."""

from tasks.children import Command


def warm_up(root: str, stage: str, spec: str) -> Command:
    """Train a warm-up stage from the spec at a key."""
    return Command(stage, "trainer.warm_up", ("--root", root, "--spec", spec))


def scratch(root: str, run: str) -> Command:
    """Make untrained weights for a run."""
    return Command("scratch", "tasks.scratch", ("--root", root, "--run", run))


def worker(root: str, base: str, index: int, folder: str = "") -> Command:
    """Roll out episodes of an RL stage. `folder`: where the user's modules lie, if not where the stage says."""
    where = ("--folder", folder) if folder else ()
    return Command(f"worker-{index}", "rollout.worker", ("--root", root, "--base", base, "--index", str(index), *where))


def learner(root: str, base: str) -> Command:
    """Learn an RL stage."""
    return Command("learner", "trainer.learner_process", ("--root", root, "--base", base))


def learner_member(root: str, base: str) -> Command:
    """Learn an RL stage as one of several processes; `tasks.members` adds which one."""
    return Command("learner", "trainer.member_process", ("--root", root, "--base", base))


def evaluate(root: str, name: str, spec: str, niceness: int = 0) -> Command:
    """Play a task set from the spec at a key. `niceness`: how far it stands back behind other processes."""
    return Command(name, "rollout.evaluate", ("--root", root, "--spec", spec, "--niceness", str(niceness)))
