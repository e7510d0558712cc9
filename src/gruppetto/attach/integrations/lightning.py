"""The Lightning Trainer as a learner: one callback.

::

    trainer = L.Trainer(max_steps=-1, callbacks=[Callback(syncer="http://127.0.0.1:7171")])
    trainer.fit(module, loader)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from torch import Tensor

from gruppetto.attach.integrations.riding import Ride, Served
from gruppetto.attach.integrations.usage import examples_in, tokens_in
from gruppetto.errors import SettingError

if TYPE_CHECKING:
    from gruppetto.attach.learner import Learner

__all__ = ["Callback"]


class Callback(pl.Callback):  # type: ignore[misc]
    """Makes a fit one learner of a run. Takes the settings of :class:`gruppetto.Learner` by name.

    It enters the run when training begins and stops the trainer when the run has finished or the learner has left it,
    also before ``min_steps`` and ``min_epochs``; a fit that ends earlier gives its work first. Once the run has
    finished the module holds the run's weights.

    ``tokens``: a function that says how many a batch has, where
    :func:`~gruppetto.attach.integrations.usage.tokens_in` guesses wrong. ``data``: a :class:`gruppetto.data.Slots` that
    is also the data set of the loader. Several optimizers (manual optimization) are taken together: the last of them to
    step ends a step. A fit of several processes (DDP, FSDP2) is one learner, of whose ``data`` each has its share.
    """

    def __init__(
        self,
        *,
        tokens: Callable[[Any], int] | None = None,
        data: Served | None = None,
        **settings: Any,
    ) -> None:
        where = "integrations.lightning.Callback"
        if tokens is not None and not callable(tokens):
            raise SettingError(f"tokens is {tokens!r:.80}", where=where, fix="pass a function of a batch")
        self._ride = Ride(settings, where=where)
        self._count, self._data = tokens or tokens_in, data
        self._tokens: list[Tensor | int] = []
        self._examples = 0
        self._steps = 0
        """The trainer's."""

    @property
    def learner(self) -> Learner | None:
        """While training goes on."""
        return self._ride.learner

    # ── as the Trainer calls it ──────────────────────────────────────────────────────────────────────────────────

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if self._data is not None and stage == "fit":
            # The loader fetches its first batches before any callback hears of the training.
            self._data.serve(lambda: self._begin(trainer, pl_module))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._begin(trainer, pl_module)
        self._stop_if_over(trainer)  # it may come when the run is over

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._examples = 0  # what was given and not used is given again

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.learner is None:
            return
        self.learner.begins_pass(training=True)
        self._examples += examples_in(batch)
        if self._ride.counts_tokens:
            self._tokens.append(self._count(batch))

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step != self._steps:  # also when the scaler has skipped it: its tokens are nobody's
            self._steps = trainer.global_step
            self._tokens.clear()
            if self.learner is not None and self._steps % max(1, trainer.log_every_n_steps) == 0:
                self._show(trainer, pl_module, outputs)
        self._begin_anew_if_moved(trainer)
        if self._stop_if_over(trainer):
            self._ride.end()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.learner is not None:
            self.learner.begins_pass(training=False)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.learner is not None:
            self._begin_anew_if_moved(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._ride.end()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._ride.abandon(exception)

    def _show(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any) -> None:
        """The loss of the last batch, for the run's page; as the module has computed it."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if self.learner is not None and isinstance(loss, Tensor) and loss.numel() == 1:
            parts = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1  # it comes divided
            self.learner.report(loss=parts * loss.item())

    def _stop_if_over(self, trainer: pl.Trainer) -> bool:
        if self._ride.over:
            trainer.should_stop = True
            # The trainer would go on to its own least number of steps or epochs, with what is nobody's any more.
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
        return self._ride.over

    def _begin_anew_if_moved(self, trainer: pl.Trainer) -> None:
        """Between two steps: end the epoch; the next one begins with the slot that it has now.

        Lightning heeds the -1 of a module, and what a callback returns it drops. This is what it does upon the former.
        """
        if self._data is not None and self._data.moved and not self._examples:
            trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = True

    def _begin(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> Learner:
        if self.learner is not None:
            return self.learner
        self._tokens, self._examples, self._steps = [], 0, trainer.global_step
        return self._ride.begin(pl_module, trainer.optimizers, used=self._used)

    def _used(self) -> int:
        """What the step that is about to be made used: tells the data, returns the tokens."""
        if self._data is not None:
            self._data.used(self._examples)
        self._examples = 0
        return self._ride.size * sum(int(tokens) for tokens in self._tokens)
