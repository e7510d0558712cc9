"""How a learner comes in: it waits until it holds the run's weights, from wherever, and training has begun."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace

from gruppetto.attach.beginning import Beginning, Begun
from gruppetto.attach.conduct import Conduct, Ends
from gruppetto.attach.hands import Hands
from gruppetto.errors import ConnectionLost
from gruppetto.protocol.actions import Seed
from gruppetto.protocol.donors import Source
from gruppetto.protocol.events import Boundary, Recovered
from gruppetto.protocol.units import Fragment
from gruppetto.runtime.backlog import SeedPart
from gruppetto.runtime.orders import Begin
from gruppetto.runtime.recovering import Find
from gruppetto.runtime.wire import RecoveryNote

__all__ = ["Entering"]

log = logging.getLogger("gruppetto.learner")


class Entering:
    """One waiting, for the training thread of rank 0 or of a learner that has no others.

    ``give_up_s`` None: never; ``says``: on standard error, what it waits for; ``leaves``: it has had notice.
    ``rewarms`` is called when it begins with a fresh optimizer, ``notes`` with where its state is from, ``meets`` again
    and again, with the lock held: other shards of the run may have become known. It raises what makes them unusable.
    """

    def __init__(
        self,
        hands: Hands,
        conduct: Conduct,
        beginning: Beginning | None,
        *,
        give_up_s: float | None,
        says: bool,
        leaves: Callable[[], bool],
        rewarms: Callable[[], None],
        notes: Callable[[RecoveryNote], None],
        meets: Callable[[], None] = lambda: None,
    ) -> None:
        self._hands, self._conduct, self._beginning = hands, conduct, beginning
        self._give_up_s, self._says, self._leaves, self._rewarms = give_up_s, says, leaves, rewarms
        self._notes, self._meets = notes, meets
        self._began = hands.client.clock.now()
        self._begun: tuple[int, Begun] | None = None
        """What all ranks have been told to begin from, until each has."""
        self._said = ""

    def wait(self) -> bool:
        """Until the first step may be made; False if it has had notice before that. Raises what ends a learner here."""
        client, conduct = self._hands.client, self._conduct
        while not self._leaves():
            with client.news:
                self._meets()
                report = conduct.meet()
                if not report.stays or not report.loops:
                    conduct.release(again=lambda: True)
                    return False
                failure = self._hands.failure
                if failure is not None:
                    conduct.release(ends=Ends(failure=str(failure)))
                    raise failure
                self._hear_the_others()
                self._look_whether_it_is_over()
                asked = [each for each in self._hands.everybody if each.client.seed_wanted]
                seeds = bool(asked)
                if seeds:
                    for each in asked:
                        each.client.seed_wanted = False
                    self._hands.holdings.model.check_finite()
                    conduct.order(Seed())
                held = conduct.release(
                    *([Boundary()] if self._hands.wants_boundary else []),
                    again=lambda seeds=seeds: seeds or self._begun is not None or not self._ready,  # type: ignore[misc]
                )
                if not held:
                    return True
                for each in asked:
                    self._seed(each)
                find = client.find if self._hands.core.recovering else None
                what = self._waiting_for
                brief = what.partition(",")[0]  # the same with other figures is no news
                if brief == self._said and find is None:
                    client.news.wait(min(conduct.poll_s, self._left_s()))
            self._say(what, brief)
            if find is not None:
                self._begin_from(find)
            if self._left_s() == 0.0:
                raise ConnectionLost(
                    f"{self._hands.core.learner} was not ready after {self._give_up_s:g} s, waiting for {what}"
                )
        return False

    @property
    def _ready(self) -> bool:
        return all(each.core.ready and each.core.linked for each in self._hands.everybody)

    @property
    def _waiting_for(self) -> str:
        return next((what for each in self._hands.everybody if (what := each.client.waiting_for)), "")

    def _left_s(self) -> float:
        if self._give_up_s is None:
            return float("inf")
        return max(0.0, self._began + self._give_up_s - self._hands.client.clock.now())

    def _say(self, what: str, brief: str) -> None:
        if brief != self._said and self._says:
            print(f"{self._hands.core.learner}: waiting for {what}", file=sys.stderr, flush=True)
        self._said = brief

    def _seed(self, hands: Hands) -> None:
        """The run has no weights yet, and is to begin with this learner's."""
        for p in range(len(hands.core.fragments)):
            fragment = Fragment(p)
            hands.client.backlog.seed(SeedPart(fragment=fragment, theta=hands.holdings.seed_part(fragment)))
        hands.client.perform(())

    def _begin_from(self, find: Find) -> None:
        """Look at what the search for a state has brought, and begin from it if it fits. The lock is not held."""
        assert self._beginning is not None
        hands, conduct = self._hands, self._conduct
        found = self._beginning.take(find, hands.client)
        if found is None:
            return
        if find.source is Source.SYNCER:
            self._rewarms()
        with hands.client.news:
            stands = hands.core.search_stands
            companions = hands.client.companions
            errand = 0 if companions is None or find.source is Source.SYNCER else companions.next()
            versions = found.versions if stands else ()
            conduct.order(Begin(source=find.source.value, number=errand, place=found.place, versions=versions))
            for fragment, version, lease in found.arrivals:
                if stands:
                    hands.holdings.found(fragment, version, lease)
                else:
                    lease.release()
            if errand:
                self._begun = errand, found
            else:
                self._notes(found.note)
            hands.feed(Recovered(versions=versions))

    def _look_whether_it_is_over(self) -> None:
        """While a state was looked for, the run has ended: nothing is left to train, and the last weights are to be had
        only as long as the syncer is there. The lock is held."""
        hands, search = self._hands, self._hands.client.recovering
        over = hands.core.recovering and all(each.core.finished for each in hands.everybody)
        if over and search is not None and search.give_up():
            self._conduct.order(Begin(source=Source.SYNCER.value))
            hands.feed(Recovered())

    def _hear_the_others(self) -> None:
        """Whether all ranks have begun from the same; if one could not, none has. The lock is held."""
        companions = self._hands.client.companions
        if self._begun is None or companions is None:
            return
        errand, found = self._begun
        verdict = companions.verdict(errand)
        if verdict is None:
            return
        self._begun, note = None, found.note
        if verdict:
            assert self._beginning is not None
            what = f"the state of {note.donor}" if note.donor else "its own checkpoint"
            log.warning("not from %s: %s; all ranks begin with the run's weights alone", what, verdict)
            self._beginning.undo()
            self._rewarms()
            self._conduct.order(Begin(source=Source.SYNCER.value))
            note = replace(note, source=Source.SYNCER.value, donor="", text=f"{what}: {verdict}")
        self._notes(note)
