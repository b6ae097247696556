"""The command line: which command was meant, and the edge where errors become one sentence and an exit code.

Commands are imported when they run: `--help` imports none of them.
"""

import argparse
import importlib
import signal
import sys
from typing import Any

DONE, STOPPED = 0, 1


def parser() -> argparse.ArgumentParser:
    """Every command with its arguments; `module` is where it lives below `flows.commands`."""
    top = argparse.ArgumentParser(prog="headrace", description="Post-training for tool-using agents.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    init = commands.add_parser("init", help="a new folder with a task of your own that runs", description=_INIT)
    init.set_defaults(module="init")
    init.add_argument("folder", metavar="DIR", help="a folder that is empty or does not exist yet")
    run = _command(commands, "run", "run a configuration to its end, or continue its run")
    _config(run)
    run.add_argument("--run", metavar="NAME", help="the run's name (default: the configuration's)")
    _validate(commands)
    _rollout(commands)
    status = _command(commands, "status", "how far runs are")
    status.add_argument("run", nargs="?", metavar="RUN")
    _json(status)
    work = _command(commands, "work", "let workers of this machine join a run that is driven elsewhere")
    work.add_argument("run", metavar="RUN")
    work.add_argument("--workers", type=int, default=1, metavar="N", help="worker processes (default: 1)")
    _folder(work)
    _quarantine(commands)
    _eval(commands)
    promote = _command(commands, "promote", "let the gate decide on a checkpoint")
    promote.add_argument("checkpoint", metavar="RUN[@STEP]")
    promote.add_argument("--channel", metavar="CHANNEL", help="default: the configuration's")
    answer = promote.add_mutually_exclusive_group()
    answer.add_argument("--approve", metavar="NAME", help="a person agrees")
    answer.add_argument("--decline", metavar="NAME", help="a person does not agree; say why with --reason")
    promote.add_argument("--reason", default="", metavar="TEXT", help="why; the decision keeps it")
    _json(promote)
    _registry(commands)
    _audit(commands)
    keep = _command(commands, "gc", "remove checkpoints that `retention` does not keep")
    keep.add_argument("runs", nargs="*", metavar="RUN", help="default: every run of the store")
    keep.add_argument("--dry-run", action="store_true", help="say what would go; remove nothing")
    _json(keep)
    for name, help_text in (
        ("serve", "fire runs on a schedule from this process"),
        ("deploy", "create a deployment on a work pool"),
    ):
        command = _command(commands, name, help_text)
        _config(command)
        command.add_argument(
            "--cron", default="", metavar="LINE", help="when to fire, such as '0 3 * * *' (default: only when asked to)"
        )
        command.add_argument("--timezone", default="", metavar="ZONE", help="of the cron lines (default: UTC)")
        command.add_argument(
            "--evaluate",
            default="",
            metavar="LINE",
            help="a cron line: when evaluators of evaluation.deployment look for whatever is due in the store",
        )
        if name == "deploy":
            command.add_argument("--work-pool", default="headrace", metavar="NAME", help="default: headrace")
            command.add_argument(
                "--job-variable",
                dest="variables",
                action="append",
                default=[],
                metavar="KEY=VALUE",
                help="of the pool's jobs, such as image=… or env.NAME=…",
            )
    return top


def main(argv: list[str]) -> int:
    """Run one command; returns the exit code."""
    try:
        args = parser().parse_args(argv)
    except SystemExit as error:
        return int(error.code or 0)
    if args.command != "serve":  # a server of firings has its own way of ending
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return importlib.import_module(f"flows.commands.{args.module}").main(args) or DONE
    except KeyboardInterrupt:
        print("headrace: stopped; the same command goes on from what is stored", file=sys.stderr)
        return STOPPED
    except BrokenPipeError:
        return STOPPED
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        print(f"headrace: {error}", file=sys.stderr)
        return code


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(module="evaluate" if name == "eval" else name)
    command.add_argument(
        "--root", metavar="URL", help="the store (default: HEADRACE_ROOT, the configuration's, ./.headrace)"
    )
    return command


def _config(command: argparse.ArgumentParser) -> None:
    command.add_argument("config", metavar="CONFIG", help="a TOML file")
    command.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="a.b=value", help="override a setting"
    )


def _json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON")


def _validate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    text = "check a configuration and all it names, down to every gold answer; nothing is written"
    command = _command(commands, "validate", text)
    _config(command)
    command.add_argument(
        "--tasks", type=int, metavar="N", help="play the gold answers of the first N tasks of every file (default: all)"
    )
    _json(command)


def _rollout(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = _command(commands, "rollout", "play some episodes with any policy and read them; nothing is stored")
    _config(command)
    command.add_argument("--episodes", type=int, default=8, metavar="N", help="how many (default: 8)")
    policy = command.add_mutually_exclusive_group()
    policy.add_argument("--policy", choices=["gold"], help="gold: say the gold answers; needs no model")
    policy.add_argument("--checkpoint", metavar="RUN[@STEP]", help="sample with its weights (default: model.path)")
    command.add_argument(
        "--from", dest="source", default="rl.tasks", metavar="SETTING", help="whose tasks (default: rl.tasks)"
    )
    command.add_argument("--temperature", type=float, metavar="T", help="default: rollout.temperature")
    command.add_argument(
        "--demonstrations", metavar="FILE", help="write the solved episodes to FILE.jsonl, for `warm_up.data`"
    )
    _json(command)


def _quarantine(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    text = "tasks that a run does not play any more"
    actions = commands.add_parser("quarantine", help=text, description=text).add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    for name, action_text in (("list", "name them, with the cause"), ("release", "take tasks back into play")):
        action = _command(actions, name, action_text)
        action.set_defaults(module="quarantine")
        action.add_argument("run", metavar="RUN")
        if name == "release":
            action.add_argument("tasks", nargs="+", metavar="TASK", help="the ids that `list` shows")
        _json(action)


def _eval(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = _command(commands, "eval", "success of a checkpoint on the held-out tasks and suites")
    command.add_argument("checkpoint", nargs="?", metavar="RUN[@STEP]")
    command.add_argument(
        "--suite", dest="suites", action="append", default=[], metavar="NAME", help="only this suite (repeatable)"
    )
    command.add_argument("--due", action="store_true", help="whatever is due of the run (default: of every run)")
    _folder(command)
    _json(command)


def _folder(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--folder",
        default="",
        metavar="PATH",
        help="the user's modules here (default: HEADRACE_FOLDER, where the run has them)",
    )


def _registry(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    for name, text in (
        ("champion", "what a channel of the registry points to"),
        ("history", "every champion that a channel has had"),
        ("rollback", "let a channel go back to an earlier champion"),
    ):
        command = _command(commands, name, text)
        command.add_argument("name", metavar="NAME", help="the model's name in the registry")
        command.add_argument("--channel", default="production", metavar="CHANNEL", help="default: production")
        if name == "rollback":
            command.add_argument("--to", metavar="RUN@STEP", help="an earlier champion (default: the one before)")
            command.add_argument("--reason", required=True, metavar="TEXT", help="why; the history keeps it")
        _json(command)
    export = _command(commands, "export", "a checkpoint or a champion as a Hugging Face folder")
    export.add_argument("what", metavar="WHAT", help="RUN[@STEP], or NAME:CHANNEL for the champion of a channel")
    export.add_argument("--out", required=True, metavar="DIR", help="a folder that does not exist yet")
    _json(export)


def _audit(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    audit = commands.add_parser(
        "audit", help="recount what the store promises", description="recount what the store promises"
    )
    kinds = audit.add_subparsers(dest="kind", required=True, metavar="KIND")
    for name, text, target, options in _AUDITS:
        kind = _command(kinds, name, text)
        kind.set_defaults(module="audit")
        kind.add_argument(target, metavar="RUN[@STEP]" if target == "checkpoint" else "RUN")
        for argument, settings in options:
            kind.add_argument(argument, **settings)
        _json(kind)


_INIT = "a new folder with a configuration, an environment, tasks and demonstrations, which run as they are"
_OUT = ("--out", {"metavar": "FILE", "help": "write all rows to FILE.parquet or FILE.csv"})
_LEDGER = ("--ledger", {"action": "store_true", "help": "read every ledger record, not the catalog"})
_AUDITS: tuple[tuple[str, str, str, tuple[tuple[str, dict[str, Any]], ...]], ...] = (
    ("verify", "every trajectory has one end, nothing was changed", "run", (_OUT,)),
    ("checkpoint", "which trajectories trained a checkpoint", "checkpoint", (_OUT, _LEDGER)),
    ("trajectory", "the life of one trajectory", "run", (("trajectory", {"metavar": "ID"}), _OUT, _LEDGER)),
    (
        "impact",
        "every checkpoint, policy and promoted channel that descends from something",
        "run",
        (
            (
                "selector",
                {"metavar": "WHAT", "help": "a trajectory's ID, task:ID, or a data file (path, key, SHA-256)"},
            ),
            _OUT,
        ),
    ),
    ("bias", "what was generated against what was trained, with test statistics", "run", (_OUT,)),
    (
        "replay",
        "train a checkpoint again from the nearest snapshot before it and compare",
        "checkpoint",
        (
            ("--from-start", {"action": "store_true", "help": "train from version 0"}),
            ("--weights", {"metavar": "FOLDER", "help": "write its weights there, such as those of an expired one"}),
        ),
    ),
    ("catalog", "copy the ledger anew into the Parquet files that audits read", "run", ()),
)
