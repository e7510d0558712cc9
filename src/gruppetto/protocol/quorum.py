"""When a round may ask, and when it closes (section 3, steps 1 and 3). Pure functions; every verdict has its reason."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GOES_ON", "Verdict", "closing_verdict", "effective_quorum", "quorum_verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A decision with its reason, in words an operator reads."""

    close: bool
    why: str


GOES_ON = Verdict(close=False, why="grace")
"""Of a round with enough answers and time left, to which somebody is to come: what most looks at a round end with."""


def effective_quorum(*, min_quorum: int, live: int, degrade: bool) -> int:
    """K; under ``when_short = "degrade"`` never more than the learners alive, and never less than 1.

    >>> effective_quorum(min_quorum=4, live=2, degrade=True), effective_quorum(min_quorum=4, live=2, degrade=False)
    (2, 4)
    """
    return max(1, min(min_quorum, live)) if degrade else min_quorum


def quorum_verdict(*, quorum: int, at_clock: int, live: int) -> Verdict:
    """The quorum is there when K live learners have reached clock t, so the K-th fastest sets the pace.

    >>> quorum_verdict(quorum=2, at_clock=1, live=3).why
    'quorum: 1/2 learners have reached it, 3 live'
    """
    if at_clock >= quorum:
        return Verdict(close=True, why=f"quorum {at_clock}/{quorum}")
    return Verdict(close=False, why=f"quorum: {at_clock}/{quorum} learners have reached it, {live} live")


def closing_verdict(
    *,
    quorum: int,
    answers: int,
    waited_for: int,
    moved_on: int,
    spent_s: float,
    grace_s: float,
    grace_over: bool,
    grace_on: bool,
) -> Verdict:
    """The three ends of the grace window; never with fewer than K answers.

    ``answers``: the smallest number of admitted contributions over the round's fragments. ``waited_for``: live learners
    that have neither answered nor said that they will be too late. ``moved_on``: live learners that have
    gone on past the round since it asked.

    >>> closing_verdict(
    ...     quorum=1, answers=3, waited_for=1, moved_on=0, spent_s=0.41, grace_s=0.4, grace_over=True, grace_on=True
    ... ).why
    'grace spent: 0.41 s, 3 answers'
    """
    if answers < quorum:
        return Verdict(close=False, why=f"answers: {answers}/{quorum} have arrived")
    if waited_for == 0:
        return Verdict(close=True, why=f"everybody answered: {answers} answers")
    if not grace_on:
        return Verdict(close=True, why=f"quorum answered: {answers} answers, no grace window")
    if moved_on >= quorum:
        return Verdict(close=True, why=f"the fleet moved on: {moved_on} learners are past the round, {answers} answers")
    if grace_over:
        return Verdict(close=True, why=f"grace spent: {spent_s:.2f} s, {answers} answers")
    return Verdict(close=False, why=f"grace: {spent_s:.2f} of {grace_s:.2f} s spent, {waited_for} learners to come")
