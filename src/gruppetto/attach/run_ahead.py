"""How far a learner may train past the newest round it has seen; a syncer that is silent stops nobody for long."""

from __future__ import annotations

import logging
from dataclasses import replace

from gruppetto.attach.conduct import Conduct, Report
from gruppetto.attach.hands import Hands
from gruppetto.attach.notice import Notice
from gruppetto.protocol.events import Boundary

__all__ = ["RunAhead"]

log = logging.getLogger("gruppetto.learner")


class RunAhead:
    """``most`` steps, None: any number; ``timeout_s`` for one waiting. For rank 0, or a learner that has no others."""

    def __init__(self, hands: Hands, conduct: Conduct, notice: Notice, *, most: int | None, timeout_s: float) -> None:
        self._hands, self._conduct, self._notice = hands, conduct, notice
        self._most, self._timeout_s = most, timeout_s
        self._deaf_since_round = -1
        self.waited_s = 0.0

    @property
    def is_too_far(self) -> bool:
        """It is to wait before the next step. A syncer that is not heard of is not waited for again."""
        hands, most = self._hands, self._most
        return most is not None and hands.is_too_far(most) and self._deaf_since_round != hands.newest_round

    def wait(self) -> Report:
        """Until rounds have closed and their weights have come. How the learner stands then: if a rank is to leave, or
        has left its loop, the others still wait for what comes of that."""
        hands, client, conduct, most = self._hands, self._hands.client, self._conduct, self._most
        assert most is not None
        began = client.clock.now()
        deadline = began + self._timeout_s
        with client.news:
            while True:
                report = conduct.meet()
                report = replace(report, stays=report.stays and not self._notice.look())
                leaves = not (report.stays and report.loops)
                left_s = deadline - client.clock.now()
                gives_up = left_s <= 0

                def goes_no_further(report: Report = report, leaves: bool = leaves, gives_up: bool = gives_up) -> bool:
                    coming = any(each.client.backlog.downloads for each in hands.everybody)
                    behind = hands.is_too_far(most) or coming or not report.settled
                    return leaves or (behind and not gives_up and not hands.finished and hands.failure is None)

                held = conduct.release(*([Boundary()] if hands.wants_boundary else []), again=goes_no_further)
                if leaves or not held:
                    break
                client.news.wait(min(conduct.poll_s, left_s))
            if left_s <= 0:
                self._deaf_since_round = hands.newest_round
                text = "%s: no round has closed in %g s; trains on without waiting"
                log.warning(text, hands.core.learner, self._timeout_s)
        self.waited_s += client.clock.now() - began
        return report
