"""The model card of an export: what the weights are and what they were made from, in Hugging Face's format.

Everything in it is read from the store; the digests let anybody who has the store check it.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from schemas.evaluation import EvaluationReport
from schemas.promotion import Channel, Promotion
from schemas.version import code_version
from storage import audit_lineage
from storage.audit_lineage import Lineage
from storage.objects import ObjectStore
from tasks.export_source import Source
from tasks.status import reports


def model_card(store: ObjectStore, source: Source, parameters: int) -> str:
    """`README.md` of the exported folder. AuditViolation where the ledger does not lead back from the checkpoint."""
    run = source.spec.run
    lineage = audit_lineage.checkpoint(store, run, source.manifest.step, weights_sha256=source.weights.sha256)
    played = [r for r in reports(store, run) if r.weights_sha256 == source.weights.sha256]
    parts = [
        f"---\n{_front(source.ref, played)}\n---",
        f"# {source.ref}",
        f"A decoder of {parameters:,} parameters, post-trained by Headrace "
        f"{code_version()} as an agent with tools. `generation_config.json` holds the sampling of its training.",
        _lineage(source, lineage),
        _training(source),
        *_adapters(source),
        _evaluations(played),
        _promotions(store, source),
        _verifying(source),
    ]
    return "\n\n".join(parts) + "\n"


def _front(ref: str, played: Sequence[EvaluationReport]) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=r.tasks,
            dataset_name=r.setting or r.tasks,
            dataset_config=f"temperature {r.temperature:g}",
            metric_type="success",
            metric_name=f"success on {r.n} episodes",
            metric_value=round(r.success, 6),
        )
        for r in played
    ]
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["headrace", "reinforcement-learning", "agents"],
        model_name=ref,
        eval_results=results or None,
    )
    return data.to_yaml().strip()


def _lineage(source: Source, lineage: Lineage) -> str:
    manifest = source.manifest
    facts = [
        ("run", source.spec.run),
        ("checkpoint", source.ref),
        ("step", str(manifest.step)),
        ("weights", f"`{source.weights.sha256}`"),
        ("ledger head", f"`{manifest.ledger_head}`"),
        ("trajectories trained", f"{sum(s.rows.num_rows for s in lineage.segments):,}"),
        ("made by", f"headrace {manifest.code}"),
    ]
    runs = [
        (f"{s.run}@{s.step}", f"rl-{s.rl}", f"{s.rows.num_rows:,}", f"`{s.ledger_head}`", s.initial.origin)
        for s in lineage.segments
    ]
    parents = [(w.stage, f"`{w.weights_sha256}`", f"warm-up{w.source}") for w in lineage.warm_ups]
    parents += [(p.ref, f"`{p.sha256}`", f"{p.kind}, outside the store") for p in lineage.outside]
    return "\n\n".join(
        [
            "## Lineage",
            _table(("", ""), facts),
            "Runs, newest first; each started from the weights in its last column:",
            _table(("checkpoint", "stage", "trained", "ledger head", "started from"), runs),
            "Before them:" if parents else "Nothing came before them.",
            *([_table(("weights", "digest", "kind"), parents)] if parents else []),
            "Data files, by SHA-256:",
            _table(("of", "file", "SHA-256"), _data(lineage)),
        ]
    )


def _data(lineage: Lineage) -> list[tuple[str, str, str]]:
    """Every data file with whose it is: tasks of a run, demonstrations of a warm-up."""
    files = [(f"tasks of {s.run}", s.tasks) for s in lineage.segments]
    files += [(w.stage, p) for w in lineage.warm_ups for p in w.inputs if p.kind in ("data", "log")]
    files += [(f"tasks of {w.taken.selection.run}", w.taken.tasks) for w in lineage.warm_ups if w.taken]
    return [(whose, p.ref, f"`{p.sha256}`") for whose, p in files]


def _training(source: Source) -> str:
    config = source.config.model_dump(mode="json")
    shown = {name: config[name] for name in ("seed", "rl", "environment", "rollout", "warm_up")}
    metrics = source.manifest.metrics
    figures = ", ".join(f"{name} {value:.4g}" for name, value in sorted(metrics.items()) if name != "rows")
    means = [f"Means over all trained rows: {figures}."] if figures else []
    return "\n\n".join(["## Training", *means, f"```json\n{json.dumps(shown, indent=2)}\n```"])


def _adapters(source: Source) -> list[str]:
    """What was trained of the weights, where that was not all of them."""
    lora, base = source.config.lora, source.spec.initial
    if lora is None:
        return []
    facts = [
        ("rank", str(lora.rank)),
        ("alpha", f"{lora.alpha:g}"),
        ("scale of B A", f"{lora.scale:g}" + (", alpha / √rank" if lora.rank_stabilized else ", alpha / rank")),
        ("targets", ", ".join(f"`{target}`" for target in lora.targets)),
        ("base", base.origin or base.prefix),
        ("digest of the base", f"`{base.sha256}`"),
    ]
    text = (
        "RL trained low-rank adapters alone (LoRA, arXiv 2106.09685). The weights in this folder have them merged into "
        "their base; `adapter/` holds them on their own, in PEFT's format."
    )
    return ["\n\n".join(["## Adapters", text, _table(("", ""), facts)])]


def _evaluations(played: Sequence[EvaluationReport]) -> str:
    rows = [
        (
            r.setting or r.tasks,
            f"{r.temperature:g}",
            f"{r.success:.1%}",
            f"{r.low:.1%} to {r.high:.1%} ({r.confidence:.0%})",
            str(r.n),
            f"`{r.tasks_sha256[:12]}`",
        )
        for r in sorted(played, key=lambda r: (r.setting, r.temperature))
    ]
    heads = ("task set", "temperature", "success", "interval", "episodes", "tasks")
    return "## Evaluation\n\n" + (_table(heads, rows) if rows else "It was not evaluated.")


def _promotions(store: ObjectStore, source: Source) -> str:
    found = [Channel.from_bytes(store.get(key).data, key) for key in store.list("registry/")]
    rows = [
        (f"{c.name}/{c.channel}", _date(e), e.kind, e.by, e.approved_by, e.previous, e.reason)
        for c in found
        for e in c.history
        if e.weights.sha256 == source.weights.sha256
    ]
    heads = ("channel", "when", "kind", "by", "approved by", "before it", "because")
    return "## Promotion\n\n" + (_table(heads, rows) if rows else "It was not promoted.")


def _verifying(source: Source) -> str:
    return f"""## Verify

With the store that it comes from:

```
headrace audit verify {source.spec.run}        # every trajectory has one end, nothing was changed
headrace audit checkpoint {source.ref}  # exactly what trained it, back to the data files
headrace audit replay {source.ref}      # train it again and compare
```

Without it, where Headrace is installed, the digest of the parameters in this folder:

```
python -c "from models.weights import *; print(params_digest(load_folder('.')[1]))"
```"""


def _date(entry: Promotion) -> str:
    return f"{datetime.fromtimestamp(entry.time, UTC):%Y-%m-%d %H:%M} UTC"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
