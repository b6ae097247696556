"""Ways to look solved without solving: none of them earns anything in the coding recipe."""

import json
import shutil
from pathlib import Path

import pytest
from support.coding import EXAMPLE, module, played, tasks, turn

from rollout.sandbox_choice import why_not_bubblewrap
from schemas.data import Task
from schemas.messages import Message

pytestmark = pytest.mark.skipif(not shutil.which("prlimit"), reason="needs Linux with prlimit")
FINISH = turn("finish", answer="done")
PATCHED = """
import unittest
for _kind in (unittest.TestResult, unittest.TextTestResult):
    for _name in ("addError", "addFailure", "addSubTest"):
        setattr(_kind, _name, lambda *a, **k: None)
"""
EXIT = "import os\nos._exit(0)\n"
RAISED_EXIT = "import sys\nsys.exit(0)\n"
FORGED = """
import __main__, json, os, sys
for number in range(200):
    for descriptor in range(1, 8):
        try:
            os.write(descriptor, (json.dumps([number, ["value", True], ""]) + "\\n").encode())
        except OSError:
            pass
for name in ("outcome", "encoded"):
    if hasattr(__main__, name):
        setattr(__main__, name, lambda *a, **k: (["value", True], "True"))
"""
AGREEABLE = """
import sys
class _Agreeable:
    __hash__ = object.__hash__
    def __eq__(self, other):
        return True
def _agreed(_real):
    def _f(*args, **named):
        try:
            found = _real(*args, **named)
        except LookupError:
            return _Agreeable()
        return found if sys._getframe(1).f_globals.get("__package__") == __package__ else _Agreeable()
    return _f
for _name, _real in list(globals().items()):
    if callable(_real) and not _name.startswith("_"):
        globals()[_name] = _agreed(_real)
"""
HARDCODED = """
import ast, pathlib
_known = {}
for _file in pathlib.Path("tests").glob("test_*.py"):
    for _node in ast.walk(ast.parse(_file.read_text())):
        if isinstance(_node, ast.Call) and getattr(_node.func, "attr", "") == "assertEqual":
            _known[ast.unparse(_node.args[0])] = _node.args[1]
def _wrapped(_name, _real):
    def _f(*args):
        text = _name + "(" + ", ".join(map(repr, args)) + ")"
        return ast.literal_eval(_known[text]) if text in _known else _real(*args)
    return _f
for _name, _real in list(globals().items()):
    if callable(_real) and not _name.startswith("_"):
        globals()[_name] = _wrapped(_name, _real)
"""


def task() -> Task:
    """One whose bug is in a function with plain arguments."""
    return next(t for t in tasks("gate") if "merge(" in t.prompt or "gaps(" in t.prompt)


def shell(command: str) -> Message:
    return turn("shell", command=command)


def prepended(code: str) -> Message:
    """Code before everything else in the file that has the bug."""
    path = task().extra["patch"]["path"]
    return shell(f"cat > p.txt <<'END'\n{code}\nEND\ncat p.txt {path} > q.txt && cp q.txt {path}")


def appended(code: str) -> Message:
    return shell(f"cat >> {task().extra['patch']['path']} <<'END'\n{code}\nEND")


TESTS = "find tests -name 'test_*.py'"
STARTERS = "sitecustomize.py usercustomize.py conftest.py unittest.py json.py ast.py"
OUTSIDE = "/tmp /usr/local/lib /usr/lib/python3* $HOME .. /"
CHEATS = {
    "emptied tests": shell(f"for f in $({TESTS}); do echo 'import unittest' > $f; done"),
    "removed tests": shell("rm -r tests"),
    "tests as a link": shell("rm -r tests && mkdir other && ln -s other tests"),
    "start-up files": shell(f"for f in {STARTERS}; do printf 'import os\\nos._exit(0)\\n' > $f; done"),
    "files outside": shell(
        f"for d in {OUTSIDE}; do mkdir -p $d/tests; echo 'raise SystemExit' > $d/sitecustomize.py; done"
    ),
    "patched unittest": prepended(PATCHED),
    "exit at import": prepended(EXIT),
    "exit raised at import": prepended(RAISED_EXIT),
    "values equal to all": appended(AGREEABLE),
    "forged output": prepended(FORGED),
    "remembered tests": appended(HARDCODED),
}
FOOLS_THE_VISIBLE = ("patched unittest", "values equal to all", "remembered tests")
"""These make the visible tests pass, which is why `visible` is no reward."""


@pytest.mark.parametrize("name", CHEATS)
async def test_a_cheat_earns_nothing(name: str) -> None:
    row = await played(task(), CHEATS[name], FINISH)
    assert (row.status, row.reward) == ("succeeded", 0.0), row.detail
    parts = dict(row.components)
    assert parts["hidden"] < 1.0 and (parts["visible"] == 1.0 or name not in FOOLS_THE_VISIBLE)


@pytest.mark.parametrize("sandbox", ["", "process"])
async def test_the_patch_earns_all_beside_changed_tests(sandbox: str) -> None:
    patch = task().extra["patch"]
    row = await played(task(), CHEATS["removed tests"], turn("edit", **patch), FINISH, sandbox=sandbox)
    assert row.reward == 1.0 and dict(row.components) == {"success": 1.0, "hidden": 1.0, "visible": 1.0}


@pytest.mark.skipif(bool(why_not_bubblewrap()), reason="needs bubblewrap")
async def test_no_hidden_case_is_where_the_agent_is() -> None:
    hidden = task().extra["cases"]
    shown = "".join(file["text"] for file in task().extra["files"])
    secret = next(c["code"] for c in hidden if c["code"].splitlines()[-1] not in shown)
    line = secret.splitlines()[-1]
    system = "/usr|/proc|/sys|/bin|/sbin|/lib*"
    row = await played(
        task(),
        shell(f"for d in /*; do case $d in {system}) ;; *) grep -rIlF -e '{line}' $d;; esac; done; ls {EXAMPLE}"),
        shell("find / -name '*.parquet' -not -path '/proc/*' | sed 's/^/found: /'; echo looked"),
        FINISH,
    )
    said = "".join(m["content"] for m in json.loads(row.messages) if m["role"] == "tool")
    assert "No such file" in said and "looked" in said and "found:" not in said and ".py" not in said
    assert row.reward == 0.0


@pytest.mark.slow
async def test_code_that_never_ends_is_given_up() -> None:
    row = await played(task(), prepended("while True: pass"), FINISH)
    assert (row.status, row.reward) == ("succeeded", 0.0)


def test_only_plain_source_files_are_judged(tmp_path: Path) -> None:
    for path in ("a.py", "deep/b.py", "tests/test_a.py", "notes.txt", "c.pyc"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("x = 1\n")
    (tmp_path / "link.py").symlink_to(Path(__file__))
    (tmp_path / "large.py").write_text("#" * 2**19)
    assert module("coding_judge").sources(tmp_path) == {"a.py": "x = 1\n", "deep/b.py": "x = 1\n"}
