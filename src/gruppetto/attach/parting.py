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

    A lost link is waited for, if there is something to give, and so is a value that lets work be kept which is to be
    given then. One line is logged: what was given, and what nobody will merge.
    """
    client, core = hands.client, hands.core
    deadline = client.clock.now() + within_s
    with client.news:
        work = sum(each.core.work for each in hands.everybody)
        conduct.meet()
        conduct.release(Leaving(), again=lambda: True)
        over = False
        while not over:
            report = conduct.meet()
            left_s = deadline - client.clock.now()
            waits = any(each.client.backlog.uploads for each in hands.everybody) or not report.idle
            cut_off = not all(each.core.linked for each in hands.everybody)
            waits = waits or (cut_off and given_by(hands) < work)
            waits = waits or any(each.core.gives_more for each in hands.everybody)
            over = not waits or left_s <= 0 or hands.failure is not None or hands.finished
            comes = [] if over or not hands.wants_boundary else [Boundary()]
            conduct.release(*comes, again=(lambda: False) if over else (lambda: True), ends=Ends(parted=over))
            if not over:
                client.news.wait(min(conduct.poll_s, left_s))
        given = given_by(hands)
    for each in hands.everybody:
        each.client.close(GOODBYE_S)
    log.warning(
        "%s left on notice at round %d: %s fragment-tokens of %d fragments were given, %s discarded",
        core.learner,
        core.newest_round,
        f"{given:,}",
        sum(len(each.client.given) for each in hands.everybody),
        f"{max(0, work - given):,}",
    )


def given_by(hands: Hands) -> int:
    """Tokens of the contributions that were taken ahead of their round, by all shards."""
    return sum(sum(each.client.given.values()) for each in hands.everybody)


def finish(hands: Hands, conduct: Conduct, *, finished: bool) -> None:
    """Say what is left to say; take the last weights, if the run has ``finished``."""
    client = hands.client
    deadline = client.clock.now() + (FINAL_WEIGHTS_S if finished else LAST_WORDS_S)
    with client.news:
        over = False
        while not over:
            report = conduct.meet(loops=False)
            if finished and hands.wants_boundary:
                conduct.release(Boundary(), again=lambda: True)
                report = conduct.meet(loops=False)
            linked = [each for each in hands.everybody if each.core.linked]
            waits = any(each.saving or each.client.backlog.uploads for each in linked) or not report.idle
            waits = waits or (finished and (not report.settled or any(map(_expects, linked))))
            over = not waits or not linked or client.clock.now() >= deadline
            if over and finished:
                conduct.order(PutBases())
                for each in hands.everybody:
                    each.holdings.put_bases()
            conduct.release(again=(lambda: False) if over else (lambda: True), ends=Ends(closing=over))
            if not over:
                client.news.wait(min(conduct.poll_s, max(0.0, deadline - client.clock.now())))
        if finished and any(each.core.linked and each.client.backlog.downloads for each in hands.everybody):
            log.warning("left without the last weights: they had not come after %g s", FINAL_WEIGHTS_S)


def _expects(hands: Hands) -> bool:
    """Weights are on their way to it, or wait to be applied."""
    return bool(hands.client.backlog.downloads) or hands.core.wants_boundary
