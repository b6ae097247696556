"""Before anything is written: the weights that a run starts from are usable, and saw nothing that it will measure."""

from schemas import keys
from schemas.manifest import RunManifest, WeightsRef
from storage.documents import read_document
from tasks.ancestors import check_unseen
from tasks.initial import check_initial, keeps_initial, read_champion
from tasks.leaks import deciding, measured
from tasks.request import Request


def check_start(request: Request) -> None:
    """RequestError where `model.path` names nothing usable, or where a task that the run would measure was trained on
    by what it starts from, by an ancestor of that, or by the champion that its gate would compare with."""
    found = check_initial(request)
    standing = read_document(request.store, RunManifest, keys.run_manifest(request.run))
    if standing is not None and keeps_initial(standing, request.config):
        found = standing.initial
    if found is not None:
        ref = found.origin or found.prefix
        why = f"which run {request.run} starts from"
        check_unseen(request.store, ref, found, measured(request.sets).values(), why)
    if standing is None:
        _check_champion(request, found)


def _check_champion(request: Request, start: WeightsRef | None) -> None:
    champion = read_champion(request.store, request.config)
    if champion is not None and champion.weights != start:
        sets = deciding(request.sets, request.config.promotion.no_regression).values()
        check_unseen(request.store, champion.ref, champion.weights, sets, "the champion that the gate compares with")
