"""The last thing a learner does that has had notice: it gives its work of every fragment, and says goodbye."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gruppetto.protocol.events import Leaving
from gruppetto.runtime.client import LearnerClient

__all__ = ["part"]

log = logging.getLogger("gruppetto.learner")

GOODBYE_S = 2.0
"""How long the goodbye may take after all that was given."""


def part(client: LearnerClient, feed: Callable[[Leaving], None], *, within_s: float) -> None:
    """Give what can be given in ``within_s`` seconds, what is due next first; then end the link.

    A lost link is waited for, if there is something to give. ``feed`` takes the event to the core and carries out what
    it decides; it is called with the lock held. One line is logged: what was given, and what nobody will merge.
    """
    core = client.core
    deadline = client.clock.now() + within_s
    with client.news:
        work = core.work
        feed(Leaving())
        while client.backlog.uploads or (not core.linked and sum(client.given.values()) < work):
            left_s = deadline - client.clock.now()
            if left_s <= 0 or client.failure is not None or core.finished:
                break
            client.news.wait(left_s)
        given = sum(client.given.values())
    client.close(GOODBYE_S)
    log.warning(
        "%s left on notice at round %d: %s fragment-tokens of %d fragments were given, %s discarded",
        core.learner,
        core.newest_round,
        f"{given:,}",
        len(client.given),
        f"{max(0, work - given):,}",
    )
