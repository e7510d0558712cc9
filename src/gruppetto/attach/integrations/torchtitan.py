"""torchtitan as a learner: a section of its configuration, and a trainer that rides along.

::

    from gruppetto.attach.integrations.torchtitan import RidesAlong, Section

    class Trainer(RidesAlong, torchtitan.trainer.Trainer):
        @dataclass(kw_only=True, slots=True)
        class Config(torchtitan.trainer.Trainer.Config):
            gruppetto: Section = field(default_factory=Section)

It is then told ``--gruppetto.syncer http://127.0.0.1:7171``; without that it is torchtitan's own trainer. Nothing here
imports torchtitan. Written against version 0.3: ``train_step(data_iterator)``, ``should_continue_training()``,
``train()``, and the attributes ``config``, ``model_parts``, ``optimizers`` and ``ntokens_seen``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gruppetto.attach.integrations.riding import Ride, check_one_process
from gruppetto.errors import SettingError
from gruppetto.home import at_home

if TYPE_CHECKING:
    from gruppetto.attach.learner import Learner

__all__ = ["RidesAlong", "Section"]


@dataclass(kw_only=True, slots=True)
class Section:
    """Part of a trainer's configuration. What is empty is left to :class:`gruppetto.Learner`."""

    syncer: str = ""
    """Address of the syncer, with those of its standbys after commas; empty: no learner."""
    name: str = ""
    """The learner's stable name."""
    token_file: str = ""
    """A file whose first line is the syncer's token."""
    ca_file: str = ""
    """Certificates that the syncer's is signed by."""
    checkpoints: str = ""
    """A directory for the learner's own checkpoints, beside torchtitan's."""
    max_run_ahead: int | None = None
    """Wait when more than so many steps ahead of the newest round."""
    on_disconnect: str = "keep-training"
    """Or "raise"."""

    def settings(self) -> dict[str, Any]:
        """For :class:`gruppetto.Learner`, by name. Raises :class:`SettingError` for a token file that is none."""
        texts = {"syncer": self.syncer, "name": self.name, "ca_file": self.ca_file, "checkpoints": self.checkpoints}
        found: dict[str, Any] = {key: value for key, value in texts.items() if value}
        if self.token_file:
            try:
                found["token"] = at_home(self.token_file).read_text().splitlines()[0].strip()
            except (OSError, IndexError, UnicodeDecodeError) as wrong:
                raise SettingError(
                    f"cannot be read ({wrong})", where=self.token_file, fix="put the syncer's token into its first line"
                ) from None
        return found | {"max_run_ahead": self.max_run_ahead, "on_disconnect": self.on_disconnect}


class RidesAlong:
    """Stands before torchtitan's ``Trainer`` among the bases of a class.

    The learner enters at the first step, when torchtitan's own checkpoint is loaded: its optimizer state is kept, the
    weights become the run's. Training ends with the run, whose weights are then in the model.
    """

    config: Any
    model_parts: list[Any]
    optimizers: Any
    ntokens_seen: int

    _ride: Ride | None = None

    @property
    def learner(self) -> Learner | None:
        """While training goes on."""
        return None if self._ride is None else self._ride.learner

    def train(self) -> None:
        section = self.config.gruppetto
        self._ride = Ride(section.settings(), where="--gruppetto") if section.syncer else None
        try:
            super().train()  # type: ignore[misc]
        except BaseException:
            if self._ride is not None:
                self._ride.abandon()
            raise
        if self._ride is not None:
            self._ride.end()

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        if self._ride is not None and self._ride.learner is None and not self._ended:
            self._begin(self._ride)
        if self._ride is None or not self._ride.over:  # who comes when the run is over makes no step
            super().train_step(data_iterator)  # type: ignore[misc]
        if self._ride is not None and self._ride.over:
            self._ended = True
            self._ride.end()

    def should_continue_training(self) -> bool:
        return not self._ended and bool(super().should_continue_training())  # type: ignore[misc]

    _ended = False

    def _begin(self, ride: Ride) -> None:
        if len(self.model_parts) != 1:
            raise SettingError(
                f"the model is in {len(self.model_parts)} parts",
                where="--parallelism.pipeline_parallel_degree",
                fix="use 1: a learner holds the whole model",
            )
        check_one_process("--gruppetto", "use one process, or gruppetto.Learner in a loop of many ranks")
        self._counted = self.ntokens_seen
        ride.begin(self.model_parts[0], self.optimizers, used=self._used)

    def _used(self) -> int:
        """Tokens of the step that is about to be made."""
        used, self._counted = self.ntokens_seen - self._counted, self.ntokens_seen
        return used
