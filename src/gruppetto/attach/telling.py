"""What a training loop tells its learner about a step: tokens, the place in the data, numbers to be shown."""

from __future__ import annotations

from typing import SupportsIndex

from gruppetto.attach.counting import StepCounts
from gruppetto.attach.view import LearnerView
from gruppetto.errors import SettingError
from gruppetto.runtime.plausible import is_name

__all__ = ["Telling"]


class Telling(LearnerView):
    """That side of a :class:`~gruppetto.attach.learner.Learner`. All of it is taken in when the step is done."""

    _counts: StepCounts

    def tokens(self, n: SupportsIndex) -> None:
        """The step in progress used ``n`` tokens more. Raises :class:`SettingError` if that is no count."""
        self._counts.add_tokens(n)

    def report(self, **numbers: float) -> None:
        """Show a few numbers (``loss=...``) beside this learner's name. They decide nothing; 32 at most.

        One that is not finite is shown as such; a ``loss`` that is not raises the alarm ``diverges``.
        """
        if not all(is_name(key) for key in numbers):
            raise SettingError(
                f"names {list(numbers)}", where="Learner.report", fix="use letters, digits, dots, dashes"
            )
        try:
            plain = {key: float(number) for key, number in numbers.items()}
        except (TypeError, ValueError, OverflowError, RuntimeError) as wrong:
            raise SettingError(f"not a number ({wrong})", where="Learner.report", fix="report plain numbers") from None
        with self._client.news:
            self._client.backlog.note(plain)

    @property
    def cursor(self) -> int:
        """The next batch of the slot. If a step takes more than one, set it between taking them and the step."""
        return self._counts.cursor

    @cursor.setter
    def cursor(self, index: SupportsIndex) -> None:
        self._counts.cursor = index

    def took(self, cursor: SupportsIndex, *, incarnation: int) -> None:
        """As setting :attr:`cursor`, of the slot that this learner had in that life (:attr:`place`): of another one it
        moves nothing."""
        self._counts.tell(cursor, incarnation)
