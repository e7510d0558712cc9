"""The judge: a process that evaluates the global model on held-out text while a run goes on.

    python -m gruppetto.launch.judge RUNDIR CACHE

It asks the syncer for the weights like anybody else, at low priority, and writes ``evaluation.jsonl``. When the run is
finished it evaluates the last weights, exports them to ``model/`` and lets the model write ``sample.txt``.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import safetensors.numpy
import torch
from torch import nn

from gruppetto.config import load_run
from gruppetto.errors import ConnectionLost, GruppettoError, RunFailed
from gruppetto.launch.ask import find_endpoint
from gruppetto.launch.ask_shards import fetch_status_of_all, fetch_whole_model
from gruppetto.launch.papers import looker_papers
from gruppetto.report.rundir import EVALUATION, RUN
from gruppetto.runtime.clock import Clock, MonotonicClock
from gruppetto.runtime.orphans import when_orphaned
from gruppetto.trace.log import TraceWriter
from gruppetto.train.data import Data, open_data
from gruppetto.train.evaluate import Evaluation, evaluate, sample
from gruppetto.train.export import export, fill
from gruppetto.train.manifest import check_same
from gruppetto.train.model import build
from gruppetto.train.setting import TrainSetting

__all__ = ["judge"]

POLL_S = 0.5
PATIENCE_S = 120.0
"""How long a syncer may be silent. The parent knows sooner if it is dead."""
SAMPLE_PROMPT = "def "
SAMPLE_TOKENS = 400


def judge(directory: Path, cache: Path, *, clock: Clock) -> None:
    """Judge the run in ``directory`` until it is finished. Raises :class:`RunFailed` if its syncer goes away."""
    config = load_run(directory / RUN)
    setting, papers = config.train, looker_papers(config.syncer.certs, config.syncer.token_file)
    torch.set_num_threads(setting.threads)
    data = open_data(setting, cache)
    check_same(data.manifest, directory)
    # A learner builds the very same weights from the seed, and the run begins with them: this is round 0.
    model = build(setting.model, data.tokenizer.vocab_size)
    pause = threading.Event()
    with TraceWriter(directory / EVALUATION, {"notes": "evaluation"}) as notes:

        def note(round: int) -> None:
            found = _held_out(model, data, setting)
            notes.note(clock.now(), "judge", "evaluation", round=round, loss=found.loss, perplexity=found.perplexity)
            notes.flush()

        note(0)
        judged, finished, heard_at = 0, False, clock.now()
        while not finished:
            pause.wait(POLL_S)
            try:
                endpoint = find_endpoint(directory / config.syncer.state)
                if endpoint is None:
                    raise ConnectionLost(f"{directory}: the syncer has not said where it listens")
                status = fetch_status_of_all(endpoint.url, token=papers.token, tls=papers.tls)
                finished = status["phase"] == "finished"
                due = finished or status["round"] >= judged + setting.eval_every_rounds
                weights = fetch_whole_model(endpoint.url, token=papers.token, tls=papers.tls) if due else None
            except ConnectionLost as error:
                if clock.now() - heard_at > PATIENCE_S:
                    raise RunFailed(f"the judge gave up: {error}") from error
                finished = False
                continue
            heard_at = clock.now()
            if weights is not None:
                fill(model, safetensors.numpy.load(weights.content))
                judged = weights.round
                note(judged)
    export(model, setting.model, data.tokenizer, directory / "model")
    generator = torch.Generator().manual_seed(setting.seed)
    text = sample(model, data.tokenizer, SAMPLE_PROMPT, SAMPLE_TOKENS, generator, context=setting.context)
    (directory / "sample.txt").write_text(text + "\n", encoding="utf-8")


def _held_out(model: nn.Module, data: Data, setting: TrainSetting) -> Evaluation:
    return evaluate(model, data.held_out, context=setting.context, num_windows=setting.eval_windows)


def main(arguments: list[str]) -> int:
    directory, cache = map(Path, arguments)
    os.nice(10)  # learners first
    when_orphaned(lambda: os._exit(1))
    try:
        judge(directory, cache, clock=MonotonicClock())
    except GruppettoError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
