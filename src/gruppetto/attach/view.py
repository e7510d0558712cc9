"""What can be looked at while a learner trains: for schedules, for trackers, for people."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from gruppetto.attach.hands import Hands
from gruppetto.attach.rewarm import Rewarm
from gruppetto.attach.run_ahead import RunAhead
from gruppetto.errors import Refused
from gruppetto.protocol.learner import LearnerCore
from gruppetto.runtime.client import LearnerClient
from gruppetto.runtime.orders import Word
from gruppetto.runtime.rank_client import RankClient

__all__ = ["LearnerView", "Place"]


class Place(NamedTuple):
    """A data slot, and the first batch of it that no step of this learner has used.

    ``incarnation`` counts the lives of the learner's name. A new one may begin at any step, when the syncer has given
    the slot away meanwhile: then slot and cursor are others.
    """

    incarnation: int
    slot: int
    cursor: int


class LearnerView:
    """The readable side of a :class:`~gruppetto.attach.learner.Learner`. Nothing here waits or changes anything."""

    def __init__(self, core: LearnerCore, client: LearnerClient | RankClient) -> None:
        self._core, self._client = core, client
        self._give_s = 0.0
        self._paced: RunAhead | None = None
        self._rewarm: Rewarm | None = None
        self._began_from = ""
        self._clocked: Hands | None = None
        """What measures its own times; None where rank 0 does it."""

    @property
    def _word(self) -> Word | None:
        """Of many ranks: how the learner stood at the last boundary, the same on all of them. What depends on it, a
        learning rate, or the end of the loop, must not differ between ranks."""
        return None

    @property
    def _shards_of_the_run(self) -> tuple[Hands, ...]:
        """What this learner has for each shard, the first one's first; of many ranks, rank 0 alone has any."""
        return () if self._clocked is None else self._clocked.everybody

    @property
    def round(self) -> int:
        """The newest round observed. Index learning-rate schedules by it, so that unequal learners anneal together.

        Where several syncers serve the run, that of the one that is furthest: one that was away is behind for good, and
        is no reason to anneal later."""
        word = self._word
        if word is not None:
            return word.state.newest_round
        return max((each.core.newest_round for each in self._shards_of_the_run), default=self._core.newest_round)

    @property
    def rounds(self) -> int | None:
        """The last round of the run, None if it has no end."""
        return self._core.rounds

    @property
    def clock(self) -> int:
        """The stamp of the step in progress: one more than the newest of own clock and observed round when it began."""
        return self._core.clock

    @property
    def lr_factor(self) -> float:
        """By what the learning rate is multiplied in the next step: below 1 for the first steps of a process that began
        in mid-run with a fresh optimizer. With ``hook=False`` multiply it yourself; otherwise that is done."""
        return 1.0 if self._rewarm is None else self._rewarm.factor

    @property
    def finished(self) -> bool:
        """The run has reached its last round; at once, for who comes when it has."""
        word = self._word
        if word is not None:
            return word.finished
        if self._clocked is None:
            return self._core.finished
        return all(each.core.finished for each in self._shards_of_the_run)

    @property
    def refusal(self) -> Refused | None:
        """Why the syncer does not take this learner in any more: what it trains from now on is for nobody. None while
        it does, and when the run has just finished."""
        word = self._word
        if word is not None:
            return None if word.refusal is None or self.finished else Refused(*word.refusal)
        failure = self._client.failure if self._clocked is None else self._clocked.failure
        return failure if isinstance(failure, Refused) and not self.finished else None

    @property
    def slot(self) -> int:
        """The data slot leased to this learner."""
        return self.place.slot

    @property
    def began_from(self) -> str:
        """Where this process has its state from: ``peer NAME``, ``checkpoint`` (its own last one), ``syncer`` (the
        run's weights alone); "" for who was there from the first round on, and for who goes on with the whole run."""
        return self._began_from

    @property
    def place(self) -> Place:
        """Where in the data this learner is, all of one moment; of many ranks, that of the last boundary."""
        word = self._word
        if word is not None:
            return Place(incarnation=word.state.incarnation, slot=word.state.slot, cursor=word.state.cursor)
        with self._client.news:
            core = self._core
            return Place(incarnation=core.incarnation, slot=core.slot, cursor=core.cursor)

    @property
    def connected(self) -> bool:
        """The syncer can be reached at this moment; all of them, where several serve the run."""
        return self._core.linked and all(each.core.linked for each in self._shards_of_the_run)

    @property
    def waiting_for(self) -> str:
        """What keeps this learner from training with the others, in words; "" if nothing does."""
        if isinstance(self._client, RankClient):
            return "rank 0" if self._word is None else self._word.waiting_for
        if self._clocked is None:
            return self._client.waiting_for
        return next((what for each in self._shards_of_the_run if (what := each.client.waiting_for)), "")

    @property
    def run(self) -> dict[str, Any]:
        """The run's settings for learners, as the syncer hands them out."""
        return {} if self._client.welcome is None else self._client.welcome.run

    def metrics(self) -> dict[str, float]:
        """Numbers for any tracker, in one flat dictionary; all begin with ``gruppetto/``. Seconds, bytes and counts."""
        core, client = self._core, self._client
        donations = client.donations
        with client.news:
            shards = self._shards_of_the_run
            cores = [each.core for each in shards] or [core]
            links: list[LearnerClient | RankClient] = [*(each.client for each in shards)] or [client]
            numbers: dict[str, float] = {
                "clock": core.clock,
                "round": max(one.newest_round for one in cores),
                "run_ahead": min(one.run_ahead for one in cores),
                "steps": core.steps,
                "tokens": core.tokens,
                "step_s": core.step_s,
                "contributions": sum(link.transfers.offered for link in links),
                "rejected": sum(sum(one.rejections.values()) for one in cores),
                "bytes_up": sum(link.bytes_up for link in links),
                "bytes_down": sum(link.bytes_down for link in links),
                "apply_s": sum(each.apply_s for each in shards),
                "snapshot_s": sum(each.snapshot_s for each in shards),
                "waited_s": 0.0 if self._paced is None else self._paced.waited_s,
                "lr_factor": self.lr_factor,
                "give_s": self._give_s,
                "bytes_given": 0 if donations is None else donations.given_bytes,
                "reconnects": sum(link.reconnects for link in links),
                "connected": float(all(one.linked for one in cores)),
            }
            if self._began_from:
                numbers[f"began_from/{self._began_from.partition(' ')[0]}"] = 1.0
            clippings, rejections = Counter[str](), Counter[str]()
            for one in cores:
                clippings.update(one.clippings)
                rejections.update(one.rejections)
            numbers["clipped"] = clippings.total()
            numbers |= {f"clipped/{cause}": count for cause, count in sorted(clippings.items())}
            numbers |= {f"rejected/{reason}": count for reason, count in sorted(rejections.items())}
        return {f"gruppetto/{key}": number for key, number in numbers.items()}
