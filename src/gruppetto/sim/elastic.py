"""A training job that goes on without the slices it has lost, and takes them back when they return (section 12)."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gruppetto.errors import SettingError
from gruppetto.protocol.maker import maker
from gruppetto.sim.failures import Fault

__all__ = ["ElasticCosts", "ElasticJob", "Stretch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticCosts:
    """What losing and regaining a slice costs a job."""

    slice_chips: int
    """Chips that are lost and regained together when one of them fails."""
    scale_down_s: float
    """The pause after a loss."""
    scale_up_s: float
    """The pause to take returned slices in."""

    def __post_init__(self) -> None:
        if self.slice_chips < 1:
            raise SettingError(f"slice_chips is {self.slice_chips}", where="simulate.slice_chips", fix="use 1 or more")
        for name in ("scale_down_s", "scale_up_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingError(
                    f"{name} is {getattr(self, name)}", where=f"simulate.{name}", fix="use 0 seconds or more"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps that were made in one go: from ``began_s`` to ``done_s`` on ``chips`` chips.

    With ``steps = 0`` the job has lost all its chips at ``dark_s``, and is itself again at ``began_s``.
    """

    began_s: float
    done_s: float
    steps: int
    chips: int
    dark_s: float | None = None


new_stretch = maker(Stretch)


class ElasticJob:
    """One job on the chips first_chip … first_chip + chips − 1, under a stream of faults that may hit it.

    A loss cuts the step in progress: it is made again after the pause. A slice that returns, and one that goes with
    notice, wait for the end of the step. What happens during a pause is taken in at its end and costs no pause of its
    own. Time is an argument and never goes back.

    >>> fault = Fault(at_s=2.5, first_chip=7, num_chips=1, down_s=10.0)
    >>> costs = ElasticCosts(slice_chips=4, scale_down_s=3.0, scale_up_s=2.0)
    >>> job, now, done = ElasticJob(first_chip=0, chips=8, faults=[fault], costs=costs), 0.0, []
    >>> while now < 16:
    ...     made = job.train(now, step_s=1.0)
    ...     now = made.done_s
    ...     done.append((made.began_s, made.chips))
    >>> done[:4], done[-3:]
    ([(0.0, 8), (1.0, 8), (5.5, 4), (6.5, 4)], [(11.5, 4), (14.5, 8), (15.5, 8)])
    """

    def __init__(
        self,
        *,
        first_chip: int,
        chips: int,
        faults: Iterable[Fault],
        costs: ElasticCosts,
        later: Iterable[tuple[int, float]] = (),
    ) -> None:
        """``later``: (slice, from when) of those that are not there from the beginning."""
        self.chips = chips
        """Chips that take part now."""
        self.all_chips = chips
        self.pauses = 0
        self._first, self._costs = first_chip, costs
        self._faults = self._that_hit(faults)
        self._next: Fault | None = next(self._faults, None)
        self._noticed: deque[Fault] = deque()
        self._absent: dict[int, float] = {}
        self._back: list[tuple[float, int]] = []
        self._free_s = 0.0
        self._done_s = 0.0
        self._quiet_until_s = -math.inf
        """Nothing is known that changes the job before, as at most steps."""
        for index, from_s in later:
            self.chips -= self._size(index)
            self._absent[index] = from_s
            heapq.heappush(self._back, (from_s, index))

    @property
    def present(self) -> tuple[int, ...]:
        """The slices that made the steps of the last stretch."""
        return tuple(i for i in range(-(-self.all_chips // self._costs.slice_chips)) if i not in self._absent)

    def train(self, start_s: float, step_s: float, steps: int = 1) -> Stretch:
        """The next steps, ``steps`` at most, from ``start_s`` on or after the pause that is due by then.

        Fewer are made when a loss cuts them (those that are whole count), and when a slice is to be taken in, or let
        go, at the end of an earlier one: what is made of a day does not depend on ``steps``.
        """
        end_s = start_s + steps * step_s
        if start_s >= self._free_s and end_s <= self._quiet_until_s:
            self._done_s = end_s
            return new_stretch(began_s=start_s, done_s=end_s, steps=steps, chips=self.chips)
        made = self._train_through(start_s, step_s, steps)
        self._quiet_until_s = self._next_change_s()
        return made

    def _train_through(self, began: float, step_s: float, steps: int) -> Stretch:
        while True:
            began = self._ready_s(began)
            if not self.chips:
                return self._dark()
            fitting, cut = self._until_cut(began, step_s, self._until_wanted(began, step_s, steps))
            if cut is None:
                whole = fitting
            else:
                whole = min(fitting - 1, int((cut.at_s - began) / step_s))
            if whole > 0:
                self._done_s = began + whole * step_s
                return new_stretch(began_s=began, done_s=self._done_s, steps=whole, chips=self.chips)
            assert cut is not None
            # The loss begins the pause; what has returned meanwhile is taken in with it.
            self._done_s = began = cut.at_s
            self._next = next(self._faults, None)
            self._lose(cut, cut.at_s)

    def _next_change_s(self) -> float:
        if self._noticed or not self.chips:
            return -math.inf
        loss_s = self._next.at_s if self._next is not None else math.inf
        return min(loss_s, self._back[0][0]) if self._back else loss_s

    def _ready_s(self, now: float) -> float:
        """Take in what has changed up to the boundary at ``now``, and what changes during the pauses for it."""
        while True:
            now = max(now, self._free_s)
            if self._noticed and self._noticed[0].at_s <= now:
                notice = self._noticed.popleft()
                self._lose(notice, notice.at_s)
                continue
            loss, back_s = self._next, self._back[0][0] if self._back else math.inf
            if loss is not None and loss.at_s <= min(back_s, now):
                self._next = next(self._faults, None)
                self._lose(loss, loss.at_s)
            elif back_s <= now:
                self._regain()
            else:
                return now

    def _until_wanted(self, began_s: float, step_s: float, steps: int) -> int:
        """Steps up to the boundary at which a slice is taken in, or let go, next."""
        if self._noticed:
            steps = min(steps, math.ceil((self._noticed[0].at_s - began_s) / step_s))
        if not self._back or self._back[0][0] >= began_s + steps * step_s:
            return steps
        return min(steps, max(1, math.ceil((self._back[0][0] - began_s) / step_s)))

    def _until_cut(self, began_s: float, step_s: float, steps: int) -> tuple[int, Fault | None]:
        """How many of these steps there are up to the next notice, and the loss that cuts them, if any.

        The loss stays the next one, until it is taken in. Nothing beyond the notice is looked at.
        """
        while (fault := self._next) is not None and fault.at_s < began_s + steps * step_s:
            if fault.notice:
                self._noticed.append(fault)
                steps = min(steps, max(1, math.ceil((fault.at_s - began_s) / step_s)))
            elif any(s not in self._absent for s in self._slices(fault)):
                return steps, fault
            else:
                self._lose(fault, fault.at_s)
            self._next = next(self._faults, None)
        return steps, None

    def _lose(self, fault: Fault, at_s: float) -> None:
        before = self.chips
        for index in self._slices(fault):
            if index in self._absent and self._absent[index] > at_s:
                continue  # it is away: there is nothing to fail
            if index not in self._absent:
                self.chips -= self._size(index)
            self._absent[index] = at_s + fault.down_s
            heapq.heappush(self._back, (at_s + fault.down_s, index))
        if self.chips < before:
            self._pause(at_s, self._costs.scale_down_s)

    def _regain(self) -> None:
        back_s, index = heapq.heappop(self._back)
        if self._absent.get(index) == back_s:
            del self._absent[index]
            self.chips += self._size(index)
            self._pause(back_s, self._costs.scale_up_s)

    def _pause(self, at_s: float, pause_s: float) -> None:
        if at_s >= self._free_s:
            self.pauses += 1
            self._free_s = max(at_s, self._done_s) + pause_s

    def _dark(self) -> Stretch:
        dark_s = self._free_s - self._costs.scale_down_s
        back_s, _ = self._back[0]
        self._done_s = back_s
        again = self._ready_s(back_s)
        return new_stretch(began_s=again, done_s=again, steps=0, chips=self.chips, dark_s=dark_s)

    def _that_hit(self, faults: Iterable[Fault]) -> Iterator[Fault]:
        end = self._first + self.all_chips
        return (f for f in faults if f.first_chip < end and f.first_chip + f.num_chips > self._first)

    def _slices(self, fault: Fault) -> range:
        size = self._costs.slice_chips
        first = max(0, fault.first_chip - self._first) // size
        last = (min(self.all_chips, fault.first_chip + fault.num_chips - self._first) - 1) // size
        return range(first, last + 1)

    def _size(self, index: int) -> int:
        """Chips of a slice; the last one may be smaller."""
        size = self._costs.slice_chips
        return min(size, self.all_chips - index * size)
