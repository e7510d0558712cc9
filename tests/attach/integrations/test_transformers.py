"""The callback in the real Trainer: what it counts, when it stops, what it leaves, and what it does in trouble."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import safetensors.torch
import torch
from torch import Tensor
from transformers import (
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import gruppetto.data
from gruppetto.attach.integrations.transformers import Callback
from gruppetto.errors import AddressError, ConnectionLost, Refused, SettingError
from gruppetto.launch.ask import fetch_model, fetch_status

Start = Callable[..., Any]
LOCK_STEP = {"num_fragments": 2, "sync_period": 2, "overlap_steps": 0, "outer": "finetune", "uplink": "fp32"}
CONTEXT = 8


def llama(seed: int = 0, width: int = 16) -> Any:
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=width,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
    )
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(seed)
        return LlamaForCausalLM(config)


def rows(count: int = 64) -> list[dict[str, Tensor]]:
    """Row n learns from n % 5 + 1 of its tokens."""
    draw = torch.Generator().manual_seed(0)
    made = []
    for n in range(count):
        ids = torch.randint(32, (CONTEXT,), generator=draw)
        made.append({"input_ids": ids, "labels": torch.where(torch.arange(CONTEXT) < CONTEXT - 1 - n % 5, -100, ids)})
    return made


def learned_from(some: list[dict[str, Tensor]]) -> int:
    return sum(int((row["labels"][1:] != -100).sum()) for row in some)


class Watcher(TrainerCallback):  # type: ignore[misc]
    """Keeps what the learner said after each step, and may do something then."""

    def __init__(self, then: Callable[[int], None] = lambda step: None) -> None:
        self.metrics: list[dict[str, float]] = []
        self.then = then
        self.losses: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.callback.learner is not None:
            self.metrics.append(self.callback.learner.metrics())
        self.then(state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **_: Any) -> None:
        self.losses.append(metrics["eval_loss"])

    callback: Callback


def trainer(
    place: Path, url: str, *, watcher: Watcher | None = None, model: Any = None, data: Any = None, **how: Any
) -> Any:
    own = {k: how.pop(k) for k in list(how) if k in ("token", "on_disconnect", "max_run_ahead", "donate")}
    settings = {
        "max_steps": 100,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "train_sampling_strategy": "sequential",
    }
    served = data if isinstance(data, gruppetto.data.Slots) else None
    callback = Callback(
        syncer=url, quiet=True, data=served, **{"name": "a", "max_run_ahead": 0, "leave_within_s": 0.3, **own}
    )
    if watcher is not None:
        watcher.callback = callback
    return Trainer(
        llama() if model is None else model,
        TrainingArguments(str(place / "out"), **{**settings, **how}),
        train_dataset=rows() if data is None else data,
        eval_dataset=rows(4),
        callbacks=[callback] if watcher is None else [watcher, callback],
    )


def assert_holds_the_runs_weights(model: Any, url: str) -> None:
    weights = safetensors.torch.load(fetch_model(url, token=None).content)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.detach(), weights[name]), name


def test_the_run_ends_the_training_and_leaves_its_weights(syncer: Start, tmp_path: Path) -> None:
    """Accumulated steps count once, with the tokens the loss is made of; the last evaluation is of those weights."""
    running = syncer(rounds=6, **LOCK_STEP)
    watcher = Watcher()
    one = trainer(tmp_path, running.url, watcher=watcher, eval_strategy="steps", eval_steps=2)
    one.train()
    assert one.state.global_step == 6
    assert [m["gruppetto/steps"] for m in watcher.metrics] == [1, 2, 3, 4, 5, 6]
    used = [learned_from(rows()[: 8 * n]) for n in range(1, 7)]
    assert [m["gruppetto/tokens"] for m in watcher.metrics] == used
    assert_holds_the_runs_weights(one.model, running.url)
    assert watcher.losses[-1] == pytest.approx(one.evaluate()["eval_loss"], abs=1e-7)
    assert watcher.callback.learner is None
    assert not one.model._forward_pre_hooks, "nothing is left behind"
    late = trainer(tmp_path, running.url)
    late.train()
    assert late.state.global_step == 1, "it comes when the run is over; one step is not to be helped"
    assert_holds_the_runs_weights(late.model, running.url)


def test_a_training_that_ends_first_gives_its_work_and_goes_on_from_a_checkpoint(syncer: Start, tmp_path: Path) -> None:
    """Steps, schedule and moments are the checkpoint's, weights the run's."""
    running = syncer(**LOCK_STEP)
    how: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4, "learning_rate": 1e-3, "warmup_steps": 4}
    first = trainer(tmp_path, running.url, max_steps=4, donate=None, **how)
    first.train()
    status = fetch_status(running.url)
    assert status["learners"]["a"]["state"] == "left"
    moved = llama(seed=5)  # its weights are neither the checkpoint's nor the run's
    watcher = Watcher()
    second = trainer(tmp_path, running.url, watcher=watcher, model=moved, max_steps=6, donate=None, **how)
    second.train(resume_from_checkpoint=True)
    assert second.state.global_step == 6
    assert [m["gruppetto/steps"] for m in watcher.metrics] == [1, 2]
    assert watcher.metrics[0]["gruppetto/lr_factor"] == 1.0, "its optimizer is not a fresh one"
    assert all(int(s["step"]) == 6 for s in second.optimizer.state.values())
    assert fetch_status(running.url)["round"] >= 5


@pytest.mark.parametrize(("comes_first", "save"), [(True, "steps"), (False, "steps"), (True, "best")])
def test_the_best_model_is_never_given_as_work(
    syncer: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture, comes_first: bool, save: str
) -> None:
    """Stopped early: what was trained is given before the Trainer loads an older model, or not at all."""
    running = syncer(**LOCK_STEP)
    how: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": save, "save_steps": 2}
    how |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "learning_rate": 1.0}
    one = trainer(tmp_path, running.url, donate=None, **how)
    stops, (ours,) = EarlyStoppingCallback(1), [c for c in one.callback_handler.callbacks if isinstance(c, Callback)]
    one.add_callback(stops)
    if not comes_first:
        one.remove_callback(ours)
        one.add_callback(ours)
    riding, load = [], one._load_best_model
    one._load_best_model = lambda: (riding.append(ours.learner is not None), load())
    one.train()
    assert 2 <= one.state.global_step < 100 and len(riding) == 1
    best = safetensors.torch.load_file(Path(one.state.best_model_checkpoint) / "model.safetensors")
    for name, parameter in one.model.named_parameters():
        assert torch.equal(parameter.detach(), best[name]), "and stays"
    gave = [record for record in caplog.records if "left on notice" in record.message]
    assert len(gave) == (not riding[0]), "given, if it was before"
    assert ours.learner is None


def test_its_data_is_where_the_run_says(syncer: Start, tmp_path: Path) -> None:
    """Though the Trainer's loader fetches ahead, and though its checkpoint would have it pass over batches."""
    running = syncer(**LOCK_STEP, num_slots=1)
    seen: list[int] = []

    class Numbered(list):  # type: ignore[type-arg]
        def __getitem__(self, index: Any) -> Any:
            seen.append(index)
            return super().__getitem__(index)

    source = Numbered(rows(64))
    data = gruppetto.data.slots(source, num_slots=1)
    watcher = Watcher()
    watcher.then = lambda step: cursors.append(watcher.callback.learner.cursor)  # type: ignore[union-attr]
    cursors: list[int] = []
    trainer(tmp_path, running.url, watcher=watcher, data=data, max_steps=3, save_strategy="steps", save_steps=3).train()
    assert cursors == [8, 16, 24]
    used, ahead = seen[:24], seen[24:]
    seen.clear()
    again = gruppetto.data.slots(source, num_slots=1)
    trainer(tmp_path, running.url, data=again, max_steps=5).train(resume_from_checkpoint=True)
    began = fetch_status(running.url)["learners"]["a"]
    assert began["incarnation"] == 2
    assert seen[: len(ahead)] == ahead, "what had been fetched and not used comes first"
    assert not set(seen[:16]) & set(used), "all of one epoch"


# ── when things go wrong ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_lost_syncer_ends_no_training_unless_asked_to(syncer: Start, tmp_path: Path) -> None:
    running = syncer(**LOCK_STEP)
    stopping = Watcher(lambda step: running.stop() if step == 2 else None)
    one = trainer(tmp_path, running.url, watcher=stopping, max_steps=12, max_run_ahead=None)
    one.train()
    assert one.state.global_step == 12
    running.start()
    watcher = Watcher(lambda step: running.stop() if step == 2 else None)
    strict = trainer(tmp_path, running.url, watcher=watcher, max_run_ahead=None, on_disconnect="raise", max_steps=10**6)
    with pytest.raises(ConnectionLost, match="start this learner again later"):
        strict.train()
    assert watcher.callback.learner is not None
    watcher.callback.close()
    assert watcher.callback.learner is None


def test_what_is_refused_is_refused_before_the_first_step(syncer: Start, tmp_path: Path) -> None:
    running = syncer(token="sesame", **LOCK_STEP)
    with pytest.raises(AddressError, match="refuses the token") as caught:
        trainer(tmp_path, running.url, token="wrong-and-secret").train()
    assert "secret" not in str(caught.value)
    trainer(tmp_path, running.url, token="sesame", max_steps=1).train()
    with pytest.raises(Refused, match="layout"):
        trainer(tmp_path, running.url, token="sesame", model=llama(width=8)).train()


def test_settings_that_are_none() -> None:
    with pytest.raises(SettingError, match=r"Callback: synker is no setting of a learner; use one of syncer, token"):
        Callback(synker="http://127.0.0.1:7171")
    with pytest.raises(SettingError, match="no syncer is named"):
        Callback()


def test_a_compiled_model_cannot_tell_what_it_used(tmp_path: Path) -> None:
    callback = Callback(syncer="http://127.0.0.1:9", data=gruppetto.data.slots(rows()))
    one = trainer(tmp_path, "http://127.0.0.1:9")
    one.args.torch_compile = True
    with pytest.raises(SettingError, match="leave torch_compile or data= out"):
        callback.on_train_begin(one.args, one.state, one.control, model=one.model, optimizer=None)  # type: ignore[arg-type]


def test_of_many_processes_each_counts_the_items_of_all() -> None:
    data = gruppetto.data.slots(rows())
    callback = Callback(syncer="http://127.0.0.1:9", data=data)
    used: list[int] = []
    data.used = used.append  # type: ignore[method-assign]
    callback._ride = SimpleNamespace(size=3)  # type: ignore[assignment]
    callback._examples, callback._tokens = 4, [5]
    assert (callback._used(), used) == (15, [12])
