"""A process whose stored configuration no longer fits says so in a sentence, before it loads anything."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from support.real_stage import lay_out, small

from schemas import keys
from schemas.errors import RequestError
from schemas.manifest import WarmUpSpec
from storage.open import open_store
from trainer import learner_process, replay_process, warm_up

BASE = "runs/test/rl-0123"


@pytest.mark.parametrize("process", [learner_process, replay_process])
def test_the_rl_stage_s(tmp_path: Path, process: Any) -> None:
    store = open_store(str(tmp_path / "root"))
    spec = lay_out(store, tmp_path, small())
    damaged = spec.model_copy(update={"config": spec.config | {"rl": {}}})
    store.put(keys.spec(BASE), damaged.to_bytes())
    with pytest.raises(RequestError, match=rf"{keys.spec(BASE)}: .*rl"):
        process.main(argparse.Namespace(root=str(tmp_path / "root"), base=BASE, step=1))


def test_a_warm_up_s(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "root"))
    config = small().model_dump(mode="json") | {"rl": {}}
    spec = WarmUpSpec(
        stage="copying", key="0123", config=config, seed=0, initial=None, data="d", data_sha256="", inputs=()
    )
    store.put("a/spec.json", spec.to_bytes())
    with pytest.raises(RequestError, match=r"a/spec.json: .*rl"):
        warm_up.main(argparse.Namespace(root=str(tmp_path / "root"), spec="a/spec.json"))
