"""Trajectories of a run's log as what a warm-up trains: the stored ids, as they were sampled, and which those were."""

from collections.abc import Sequence

from models.tokenizer import Tokenizer
from schemas import keys
from schemas.errors import RequestError
from schemas.selection import Selected, Selection
from storage.objects import ObjectStore
from storage.selected import read_selected
from trainer.streams import Example, Pair


def taken_examples(store: ObjectStore, selection: Selection, tokenizer: Tokenizer) -> list[Example]:
    """The streams of what is to be imitated. RequestError where they were sampled with another tokenizer; LogDamaged
    where a shard does not hold what was selected."""
    _check_tokenizer(selection, tokenizer)
    return _streams(store, selection, selection.chosen)


def taken_pairs(store: ObjectStore, selection: Selection, tokenizer: Tokenizer) -> list[Pair]:
    """Both sides of every pair; errors as `taken_examples`."""
    _check_tokenizer(selection, tokenizer)
    sides = (_streams(store, selection, side) for side in (selection.chosen, selection.rejected))
    return list(zip(*sides, strict=True))


def _streams(store: ObjectStore, selection: Selection, wanted: Sequence[Selected]) -> list[Example]:
    rows = read_selected(store, keys.rl(selection.run, selection.rl), wanted)
    return [(list(row.tokens), list(row.mask)) for row in rows]


def _check_tokenizer(selection: Selection, tokenizer: Tokenizer) -> None:
    if tokenizer.digest != selection.tokenizer:
        raise RequestError(
            f"the log of run {selection.run} was sampled with another tokenizer than that of the weights that the "
            f"warm-up starts from, so its token ids mean something else here: make a data file of its conversations"
        )
