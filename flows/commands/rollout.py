"""`headrace rollout`: play some episodes with any policy and print what was said; nothing is stored."""

import argparse
import json
import sys
from collections import Counter
from typing import Any

from flows.demonstrations import check_file, write_demonstrations
from schemas.data import Task
from schemas.errors import RequestError
from schemas.trajectory import Trajectory
from tasks.environment import check_environment
from tasks.request import load
from tasks.trial import play_gold, play_weights, tasks_of, tools_of


def main(args: argparse.Namespace) -> None:
    if args.episodes < 1:
        raise RequestError(f"--episodes {args.episodes}: give at least 1")
    if args.temperature is not None and args.temperature < 0:
        raise RequestError(f"--temperature {args.temperature:g}: give 0 or more")
    check_file(args.demonstrations)
    request = load(args.config, args.overrides, root=args.root)
    tasks = tasks_of(request, args.source)
    check_environment(request)
    if args.policy == "gold":
        rows = play_gold(request, args.source, tasks, args.episodes)
    else:
        rows = play_weights(request, args.checkpoint, tasks, args.episodes, args.temperature)
    if args.demonstrations:
        count = write_demonstrations(rows, tools_of(request), args.demonstrations)
        print(f"{count} demonstrations written to {args.demonstrations}", file=sys.stderr)
    known = {t.id: t for t in tasks}
    episodes = [_episode(row, known[row.task_id]) for row in rows]
    if args.json:
        return print(json.dumps({"episodes": episodes, **_summary(episodes)}, indent=2))
    print("\n\n".join([*map(_text, episodes), _closing(_summary(episodes))]))


def _episode(row: Trajectory, task: Task) -> dict[str, Any]:
    return {
        "task": row.task_id,
        "sample": row.sample,
        "status": row.status,
        "detail": row.detail,
        "reward": row.reward,
        "components": dict(row.components),
        "solved": row.solved,
        "expected": task.answer,
        "tokens": len(row.tokens),
        "sampled": sum(row.mask),
        "messages": json.loads(row.messages),
    }


def _summary(episodes: list[dict[str, Any]]) -> dict[str, Any]:
    count = len(episodes)
    return {
        "success": sum(e["solved"] for e in episodes) / count,
        "reward": sum(e["reward"] for e in episodes) / count,
        "statuses": dict(Counter(e["status"] for e in episodes)),
    }


def _text(episode: dict[str, Any]) -> str:
    parts = "".join(f", {name} {value:g}" for name, value in episode["components"].items())
    lines = [
        f"{episode['task']} (sample {episode['sample']}): {'solved' if episode['solved'] else 'not solved'}, "
        f"reward {episode['reward']:g}{parts}; {episode['status']}, {episode['sampled']} of {episode['tokens']} tokens "
        f"sampled"
    ]
    lines += [f"  {episode['detail']}"] if episode["detail"] else []
    lines += [_message(m) for m in episode["messages"]]
    return "\n".join([*lines, _indented("expected", episode["expected"])])


def _message(message: dict[str, Any]) -> str:
    """One turn; a call as `name(arguments)`."""
    calls = [
        f"{c['function']['name']}({json.dumps(c['function']['arguments'], ensure_ascii=False)})"
        for c in message.get("tool_calls", [])
    ]
    content = [message["content"]] if message["content"] or not calls else []
    thought = [f"(thinks) {message['reasoning_content']}"] if "reasoning_content" in message else []
    return _indented(message["role"], "\n".join([*thought, *content, *calls]))


def _indented(name: str, text: str) -> str:
    return f"  {name:<10} " + text.replace("\n", "\n" + " " * 13)


def _closing(summary: dict[str, Any]) -> str:
    ends = ", ".join(f"{count} {status}" for status, count in summary["statuses"].items())
    return f"success {summary['success']:.1%}, mean reward {summary['reward']:.3f}; {ends}"
