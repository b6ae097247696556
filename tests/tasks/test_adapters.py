"""Adapters that do not fit the model are refused before any work."""

from pathlib import Path

import pytest

from flows.cli import main


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ('lora.targets=["qkv"]', "`qkv` matches no matrix of this model: it has down_proj, gate_proj, k_proj, o_proj"),
        ("lora.rank=512", "lora.rank = 512 is not low for model.layers.0."),
        ("lora.rank=0", "lora.rank"),
        ("lora.targets=[]", "lora.targets"),
    ],
)
def test_adapters_that_do_not_fit(
    project: Path, root: str, capsys: pytest.CaptureFixture[str], override: str, words: str
) -> None:
    assert main(["run", str(project / "small.toml"), "--root", root, "--set", override]) == 2
    said = capsys.readouterr().err
    assert said.startswith("headrace: ") and words in said and said.count("\n") == 1
    assert not [p for p in Path(root).rglob("*") if p.is_file()]
