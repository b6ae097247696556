"""`champion`, `history` and `rollback`, for people and as JSON."""

import json

import pytest

from flows.cli import main
from schemas.manifest import WeightsRef
from schemas.promotion import Channel, Promotion
from storage.open import open_store
from tasks import registry


@pytest.fixture
def champions(root: str) -> str:
    store = open_store(root)
    for ref in ("monday@8", "tuesday@8"):
        store.put(f"weights/{ref}/config.json", b"{}")

        def make(channel: Channel, ref: str = ref) -> Promotion:
            weights = WeightsRef(prefix=f"weights/{ref}", sha256=f"{ref[:2]}ab", origin=ref)
            before = channel.champion.ref if channel.champion else ""
            return Promotion(ref=ref, by="me@here", approved_by="Ada", weights=weights, ledger_head="", report="",
                             previous=before, reason=f"{ref} is better", time=1.8e9)  # fmt: skip

        registry.append(store, "m", "production", make)
    return root


def test_champion_history_and_rollback(champions: str, capsys: pytest.CaptureFixture[str]) -> None:
    def ask(*argv: str) -> tuple[int, str, str]:
        code = main([*argv, "--root", champions])
        out = capsys.readouterr()
        return code, out.out, out.err

    code, out, _ = ask("champion", "m")
    assert code == 0 and out.startswith("m/production: tuesday@8") and "by me@here, approved by Ada" in out
    assert json.loads(ask("champion", "m", "--json")[1])["ref"] == "tuesday@8"
    code, out, _ = ask("rollback", "m", "--reason", "it swears")
    assert code == 0 and out.startswith("m/production: monday@8") and "because   it swears" in out
    code, out, _ = ask("history", "m")
    assert code == 0 and "3 entries" in out
    assert [line.split()[2] for line in out.splitlines()[2:]] == ["monday@8", "tuesday@8", "monday@8"]
    found = json.loads(ask("history", "m", "--json")[1])["history"]
    assert [e["kind"] for e in found] == ["gate", "gate", "rollback"] and found[2]["previous"] == "tuesday@8"
    assert json.loads(ask("rollback", "m", "--to", "tuesday@8", "--reason", "no", "--json")[1])["ref"] == "tuesday@8"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("champion", "other"), "nothing was ever promoted to other/production"),
        (("history", "m", "--channel", "staging"), "its channels are m/production"),
        (("rollback", "m", "--reason", " "), "--reason is empty"),
        (("rollback", "m", "--to", "sunday@1", "--reason", "x"), "its earlier champions are monday@8"),
    ],
)
def test_wrong_requests_are_one_sentence(
    argv: tuple[str, ...], says: str, champions: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--root", champions]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1
