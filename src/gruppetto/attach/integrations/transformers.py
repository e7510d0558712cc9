"""The Hugging Face Trainer, and what is built on it, as a learner: one callback.

::

    trainer = Trainer(model, args, train_dataset=..., callbacks=[Callback(syncer="http://127.0.0.1:7171")])
    trainer.train()
    trainer.save_model()  # of a finished run: the run's weights, the same bits in every learner
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gruppetto.attach.integrations.riding import Ride, Served, check_one_process, is_training
from gruppetto.attach.integrations.usage import examples_in, tokens_in
from gruppetto.errors import SettingError

if TYPE_CHECKING:
    from gruppetto.attach.learner import Learner

__all__ = ["Callback"]

log = logging.getLogger("gruppetto.learner")

NOT_DISPATCHED = "pass accelerator_config={'dispatch_batches': False}, so that each of them reads its own items"


class Callback(TrainerCallback):  # type: ignore[misc]
    """Makes a training one learner of a run. Takes the settings of :class:`gruppetto.Learner` by name.

    It enters the run when training begins (so the model that was passed in may have any weights), and ends the training
    when the run has finished, or the learner has left it; ``max_steps`` and epochs end it earlier, and its work is then
    given as on notice. Once the run has finished the model holds the run's weights: for the last evaluation, the last
    checkpoint, and after ``train``.

    A training of several processes (DDP, FSDP2) is one learner; its checkpoints are the Trainer's own. With ``data`` it
    takes ``accelerator_config={"dispatch_batches": False}``: each process reads the items of all, and uses its own.

    Tokens are those that the loss is made of: the Trainer's ``num_items_in_batch`` where the model takes it, else what
    the batches hold (:func:`~gruppetto.attach.integrations.usage.tokens_in`), times the number of ranks. A model that
    is compiled tells nothing: pass ``tokens_per_step``, or count with ``include_num_input_tokens_seen``.

    ``data``: a :class:`gruppetto.data.Slots` that is also the ``train_dataset``.

    From a checkpoint of the Trainer come its steps, its schedule and the optimizer's state; the weights come from the
    run, and from ``data`` the next batches that nobody has merged.
    """

    def __init__(self, *, data: Served | None = None, **settings: Any) -> None:
        self._ride = Ride(settings, where="integrations.transformers.Callback")
        self._data = data
        self._items: Tensor | int | None = None
        """The step's, as the Trainer has counted them."""
        self._tokens: list[Tensor | int] = []
        """Of each pass, where it has not."""
        self._examples = 0
        self._seen = 0
        self._listening: Any = None

    @property
    def learner(self) -> Learner | None:
        """While training goes on."""
        return self._ride.learner

    def close(self) -> None:
        """Leave the run at once: after an exception of ``train``, if the process is to live on."""
        self._stop_listening()
        self._ride.abandon()

    # ── as the Trainer calls it ──────────────────────────────────────────────────────────────────────────────────

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._data is not None:
            args.ignore_data_skip = True  # where it goes on is the run's to say

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        **_: Any,
    ) -> None:
        if self._data is not None and args.torch_compile:
            raise SettingError(
                "a compiled model does not tell which of the data it has used",
                where="integrations.transformers.Callback",
                fix="leave torch_compile or data= out",
            )
        deals = args.accelerator_config
        if self._data is not None and (deals.dispatch_batches is not False or deals.split_batches):
            check_one_process("integrations.transformers.Callback(data=)", NOT_DISPATCHED)
        self._stop_listening()
        self._forget()
        self._state, self._seen = state, int(state.num_input_tokens_seen)
        learner = self._ride.begin(model, optimizer, used=self._used)
        self._listening = model.register_forward_pre_hook(self._on_pass, with_kwargs=True)
        if self._data is not None:
            self._data.serve(learner, share=(0, 1))  # Accelerate deals out to the processes what each of them reads

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self._examples = 0  # what was given and not used is given again

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._forget()  # the tokens of a step that the scaler has skipped are nobody's
        self._seen = int(state.num_input_tokens_seen)
        if self._data is not None and self._data.moved:
            control.should_epoch_stop = True  # and the next one begins with the slot that it has now
        if self._ride.over:
            control.should_training_stop = True
        if control.should_training_stop:
            self._end()

    def on_log(self, *_: Any, logs: dict[str, Any] | None = None, **__: Any) -> None:
        loss = (logs or {}).get("loss")
        if self.learner is not None and isinstance(loss, float):
            self.learner.report(loss=loss)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._end_if_told(control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._end_if_told(control)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._end_if_told(control)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.learner is not None and args.load_best_model_at_end and state.best_model_checkpoint is not None:
            # The model is an older one of its own by now: what it differs in from the run is no work.
            log.warning("%s: the best model has been loaded; what was trained last is not given", self.learner.name)
            self.close()
        self._end()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_pass(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or not is_training(model):
            return
        self._items = kwargs.get("num_items_in_batch")
        batch = kwargs or args
        self._examples += examples_in(batch)
        if self._items is None and self._ride.counts_tokens:
            self._tokens.append(tokens_in(batch))

    def _used(self) -> int:
        """What the step that is about to be made used: tells the data, returns the tokens."""
        if self._data is not None:
            self._data.used(self._ride.size * self._examples)
        self._examples = 0
        if self._items is not None:
            items = self._items
            return round(float(items.flatten()[0] if isinstance(items, Tensor) else items))
        if self._tokens:
            return self._ride.size * sum(int(tokens) for tokens in self._tokens)
        return int(self._state.num_input_tokens_seen) - self._seen

    def _forget(self) -> None:
        self._items = None
        self._tokens.clear()

    def _end_if_told(self, control: TrainerControl) -> None:
        """Whoever has said so (early stopping, after an evaluation): before anything is loaded into the model."""
        if control.should_training_stop:
            self._end()

    def _end(self) -> None:
        self._stop_listening()
        self._ride.end()

    def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.remove()
            self._listening = None
