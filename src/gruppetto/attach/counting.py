"""What a step used: its tokens, and the batch of the data slot that comes next.

Everything the loop says is checked where it says it: a count that the wire cannot carry would otherwise end the
learner's part in the run, far from the line that has to be mended.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable
from typing import SupportsIndex

from gruppetto.errors import SettingError
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.units import UNBORN, Incarnation
from gruppetto.runtime.plausible import MAX_COUNT

__all__ = ["StepCounts", "whole_number"]

log = logging.getLogger("gruppetto.learner")

MAX_CURSOR = MAX_COUNT // 2
"""Of a cursor that is told: leaves room for the steps that count on from there."""


def whole_number(value: SupportsIndex, where: str, *, least: int = 0, most: int = MAX_COUNT) -> int:
    """A plain int from ``least`` to ``most``, of whatever kind of integer (numpy's, a tensor with one element).

    Raises :class:`SettingError` for anything else.

    >>> whole_number(8.0, "Learner.tokens")
    Traceback (most recent call last):
    ...
    gruppetto.errors.SettingError: Learner.tokens: 8.0 is no whole number; use a whole number, 0 or more
    """
    fix = f"use a whole number, {least} or more"
    try:
        number = operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # the latter two from a tensor with more elements than one
        raise SettingError(f"{value!r:.80} is no whole number", where=where, fix=fix) from None
    if isinstance(value, bool):
        raise SettingError(f"{value} is no whole number", where=where, fix=fix)
    if number < least:
        raise SettingError(f"{_short(number)} is too small", where=where, fix=fix)
    if number > most:
        raise SettingError(
            f"{_short(number)} is too large", where=where, fix=f"use a whole number from {least} to {most}"
        )
    return number


class StepCounts:
    """Collects what the loop says during a step. ``cursor``: a function that is asked after every step, or None."""

    def __init__(
        self, core: LearnerCore, *, tokens_per_step: int | None, cursor: Callable[[], SupportsIndex] | None
    ) -> None:
        self._core, self._tokens_per_step, self._ask_cursor = core, tokens_per_step, cursor
        self._extra_tokens = 0
        self._told: tuple[Incarnation, int] | None = None
        """The cursor as set, and in which life of this learner."""
        self._life = core.incarnation
        """At the last boundary."""

    @property
    def cursor(self) -> int:
        """The next batch of the slot, as told last."""
        told_here = self._told is not None and self._told[0] == self._core.incarnation
        return self._told[1] if told_here and self._told is not None else self._core.cursor

    @cursor.setter
    def cursor(self, index: SupportsIndex) -> None:
        self.tell(index, self._core.incarnation)

    def tell(self, index: SupportsIndex, incarnation: int) -> None:
        """The next batch of the slot that the learner had in this life."""
        self._told = Incarnation(incarnation), whole_number(index, "Learner.cursor", most=MAX_CURSOR)

    def add_tokens(self, n: SupportsIndex) -> None:
        """The step in progress used ``n`` tokens more."""
        self._extra_tokens += whole_number(n, "Learner.tokens", most=self._room())

    def take_tokens(self, told: SupportsIndex | None) -> int:
        """The tokens of the step just done; ``told`` goes before ``tokens_per_step``."""
        if told is not None:
            tokens = whole_number(told, "Learner.step(tokens=)", most=self._room())
        elif self._tokens_per_step is not None:
            tokens = whole_number(self._tokens_per_step, "Learner.tokens_per_step", most=self._room())
        else:
            tokens = 0 if self._extra_tokens else self._unknown()
        tokens, self._extra_tokens = tokens + self._extra_tokens, 0
        return tokens

    def take_cursor(self) -> int:
        """The next batch, now that the step is done: as the function says, as was set, or one further.

        A new life may begin within a step, with another slot. What was set before then speaks of the old slot and moves
        nothing; of what a function says nobody knows which slot it means, so the step counts one batch, and no batch is
        counted too few. The core's lock is held.
        """
        told, self._told = self._told, None
        before, self._life = self._life, self._core.incarnation
        is_new_life = before not in (UNBORN, self._life)
        if self._ask_cursor is not None:
            asked = whole_number(self._ask_cursor(), "Learner.cursor", most=MAX_CURSOR)
            return self._core.cursor + 1 if is_new_life else asked
        if told is None:
            return self._core.cursor + 1
        return told[1] if told[0] in (UNBORN, self._life) else self._core.cursor

    def _room(self) -> int:
        """What can be counted before the total is beyond what the wire carries."""
        return MAX_COUNT - self._core.tokens - self._extra_tokens

    def _unknown(self) -> int:
        if self._core.steps == 0:
            log.warning(
                "%s: the tokens of a step are not known and count as 1, so larger batches get no larger weight. "
                "Pass tokens_per_step=, or call learner.tokens(n) in the loop",
                self._core.learner,
            )
        return 1


def _short(number: int) -> str:
    """A number of any length in a few characters: printing thousands of digits fails."""
    return str(number) if number.bit_length() <= 128 else f"a number of {number.bit_length()} bits"
