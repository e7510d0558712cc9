"""The last thing a learner does: on notice it gives its work of every fragment; of a finished run it takes the weights.

Both are loops of boundaries, so that a learner of many ranks ends together.
"""

from __future__ import annotations

import logging

from gruppetto.attach.conduct import Conduct, Ends
from gruppetto.attach.hands import Hands
from gruppetto.protocol.events import Boundary, Leaving
from gruppetto.runtime.orders import PutBases

__all__ = ["LAST_WORDS_S", "finish", "part"]

log = logging.getLogger("gruppetto.learner")

FINAL_WEIGHTS_S = 10.0
"""How long :func:`finish` waits for the last weights of a finished run."""
LAST_WORDS_S = 2.0
"""How long leaving may take otherwise."""
GOODBYE_S = 2.0
"""How long the goodbye may take after all that was given."""


def part(hands: Hands, conduct: Conduct, *, within_s: float) -> None:
    """Give what can be given in ``within_s`` seconds, what is due next first; then end the link.

    A lost link is waited for, if there is something to give. One line is logged: what was given, and what nobody will
    merge.
    """
    client, core = hands.client, hands.core
    deadline = client.clock.now() + within_s
    with client.news:
        work = core.work
        conduct.meet()
        conduct.release(Leaving(), again=lambda: True)
        over = False
        while not over:
            report = conduct.meet()
            left_s = deadline - client.clock.now()
            waits = client.backlog.uploads or not report.idle
            waits = waits or (not core.linked and sum(client.given.values()) < work)
            over = not waits or left_s <= 0 or client.failure is not None or core.finished
            conduct.release(again=(lambda: False) if over else (lambda: True), ends=Ends(parted=over))
            if not over:
                client.news.wait(min(conduct.poll_s, left_s))
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


def finish(hands: Hands, conduct: Conduct, *, finished: bool) -> None:
    """Say what is left to say; take the last weights, if the run has ``finished``."""
    client, core = hands.client, hands.core
    deadline = client.clock.now() + (FINAL_WEIGHTS_S if finished else LAST_WORDS_S)
    with client.news:
        over = False
        while not over:
            report = conduct.meet(loops=False)
            if finished and core.wants_boundary:
                conduct.release(Boundary(), again=lambda: True)
                report = conduct.meet(loops=False)
            waits = hands.saving or client.backlog.uploads or not report.idle
            waits = waits or (finished and (client.backlog.downloads or not report.settled or core.wants_boundary))
            over = not waits or not core.linked or client.clock.now() >= deadline
            if over and finished:
                conduct.order(PutBases())
                hands.holdings.put_bases()
            conduct.release(again=(lambda: False) if over else (lambda: True), ends=Ends(closing=over))
            if not over:
                client.news.wait(min(conduct.poll_s, max(0.0, deadline - client.clock.now())))
        if finished and core.linked and client.backlog.downloads:
            log.warning("left without the last weights: they had not come after %g s", FINAL_WEIGHTS_S)
