"""The token ledger: what became of every token that was trained on (section 10).

The unit is the *fragment-token*: one token, seen by one fragment. A learner that trains on n tokens spends n of
them in each of the P fragments; each fragment's share is then merged, discarded or lost on its own. At every
moment, exactly::

    consumed · P  =  merged + promised + discarded + lost + open

``open`` is what a learner has trained since it last received the fragment and nobody has merged yet. At the end of
a run it is settled to zero. ``promised`` is what a leaving learner gave ahead of its round: folded already, and merged
when that round takes its outer step. A running merge does not survive its syncer, and so a promise does not either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gruppetto.protocol.messages import Applied
from gruppetto.protocol.units import NEVER, Fragment, LearnerId, Version

__all__ = ["Account", "Departed", "Ledger", "Totals", "whole_tokens"]


MOST_FRAGMENT_TOKENS = 2**62
"""Sums stay in 64 bits, as they are written."""


@dataclass(slots=True, kw_only=True)
class Account:
    """One life of one learner. Lists have one entry per fragment."""

    tokens: int = 0
    """Tokens trained on in this life, as far as reported."""
    marks: list[int] = field(default_factory=list)
    """The token total from which on each fragment's work is open."""
    merged: list[int] = field(default_factory=list)
    """Tokens after the mark that are merged already, or promised."""
    doubt: list[Version] = field(default_factory=list)
    """Open work may have been merged in a round that was lost with a life of the syncer, until this version is
    applied; NEVER: it cannot have been."""

    def __post_init__(self) -> None:
        self.doubt = self.doubt or [NEVER] * len(self.marks)

    def copy(self) -> Account:
        """One that later bookings do not touch. There is one of every account in every commit."""
        twin = object.__new__(Account)
        twin.tokens = self.tokens
        twin.marks, twin.merged, twin.doubt = self.marks.copy(), self.merged.copy(), self.doubt.copy()
        return twin

    def open(self, fragment: Fragment) -> int:
        return max(0, self.tokens - self.marks[fragment] - self.merged[fragment])


@dataclass(slots=True, kw_only=True)
class Totals:
    """Fragment-tokens by fate, over the whole run."""

    merged: int = 0
    discarded: int = 0
    lost: int = 0


@dataclass(slots=True, kw_only=True)
class Departed:
    """The sum over all who left so long ago that the books do not name them any more."""

    names: int = 0
    """How often a name was folded in; one that has come back since, and left again, counts again."""
    consumed: int = 0
    """Tokens."""
    merged: int = 0
    """Fragment-tokens."""
    lost: int = 0


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Accounts of the living, totals of all.

    >>> ledger = Ledger(num_fragments=2)
    >>> ledger.open_account(LearnerId("a"))
    >>> ledger.trained(LearnerId("a"), 100)
    >>> ledger.merged(LearnerId("a"), Fragment(0), 60, 60)
    >>> ledger.applied(LearnerId("a"), Applied(fragment=Fragment(0), version=1, at_tokens=100))
    >>> ledger.totals.merged, ledger.totals.discarded, ledger.open_total()
    (60, 40, 100)
    >>> ledger.balances()
    True
    """

    num_fragments: int
    consumed: int = 0
    """Tokens, not fragment-tokens."""
    merged_in: list[int] = field(default_factory=list)
    """Fragment-tokens merged in the present value of each fragment; together ``totals.merged``."""
    totals: Totals = field(default_factory=Totals)
    accounts: dict[LearnerId, Account] = field(default_factory=dict)
    promised_by: dict[LearnerId, list[int]] = field(default_factory=dict)
    """Fragment-tokens that wait in a running merge for their round, per learner and fragment."""
    discarded_by: dict[str, int] = field(default_factory=dict)
    lost_by: dict[LearnerId, int] = field(default_factory=dict)
    merged_by: dict[LearnerId, int] = field(default_factory=dict)
    """Fragment-tokens merged, per learner, over all its lives. What was lost afterwards with a damaged file is not
    taken out again: whose it was is not known any more."""
    consumed_by: dict[LearnerId, int] = field(default_factory=dict)
    """Who has left stands behind all who left before: the first ones are the first to be named no more."""
    departed: Departed = field(default_factory=Departed)

    def __post_init__(self) -> None:
        self.merged_in = self.merged_in or [0] * self.num_fragments

    def open_account(self, learner: LearnerId) -> None:
        """A new life begins. The account of the life before must be closed."""
        assert learner not in self.accounts, learner
        zeros = [0] * self.num_fragments
        self.accounts[learner] = Account(marks=list(zeros), merged=list(zeros))

    def trained(self, learner: LearnerId, total_tokens: int) -> None:
        """The learner's own total. A total that is not news changes nothing."""
        account = self.accounts[learner]
        news = total_tokens - account.tokens
        if news > 0 and self._has_room_for(news):
            account.tokens = total_tokens
            self.consumed += news
            self.consumed_by[learner] = self.consumed_by.get(learner, 0) + news

    def is_open(self, learner: LearnerId, fragment: Fragment, tokens: int, total_tokens: int) -> bool:
        """The last ``tokens`` of the first ``total_tokens`` are open still, all of them: none is merged twice."""
        account = self.accounts[learner]
        if total_tokens - tokens < account.marks[fragment] + account.merged[fragment]:
            return False
        return total_tokens <= account.tokens or self._has_room_for(total_tokens - account.tokens)

    def merged(self, learner: LearnerId, fragment: Fragment, tokens: int, total_tokens: int) -> None:
        """The last ``tokens`` of the first ``total_tokens``, open so far, are folded into the global fragment."""
        self._take(learner, fragment, tokens, total_tokens)
        self._book_merged(learner, fragment, tokens)

    def promised(self, learner: LearnerId, fragment: Fragment, tokens: int, total_tokens: int) -> None:
        """They are folded, but their round has not come: neither open nor merged until :meth:`kept`."""
        self._take(learner, fragment, tokens, total_tokens)
        self.promised_by.setdefault(learner, [0] * self.num_fragments)[fragment] += tokens

    def kept(self, learner: LearnerId, fragment: Fragment) -> None:
        """The outer step that was promised this learner's work has been taken. Harmless where nothing was promised."""
        waiting = self.promised_by.get(learner)
        if waiting is None or not waiting[fragment]:
            return
        tokens, waiting[fragment] = waiting[fragment], 0
        if not any(waiting):
            del self.promised_by[learner]
        self._book_merged(learner, fragment, tokens)

    def broken(self) -> None:
        """The running merges have gone with a syncer, and what was promised with them. Who has not left may give it
        once more, so its tokens are open again; those of an account that is closed are lost."""
        for learner, waiting in self.promised_by.items():
            account = self.accounts.get(learner)
            for fragment, tokens in enumerate(waiting):
                again = min(tokens, account.merged[fragment]) if account is not None else 0
                if account is not None:
                    account.merged[fragment] -= again
                self._lose(learner, tokens - again)
        self.promised_by = {}

    def voided(self, learner: LearnerId, fragment: Fragment, tokens: int) -> None:
        """A merge that could not be published. Its base has stayed, so its tokens are open again, and will come with
        the next contribution; if the life that trained on them has ended meanwhile, they are discarded."""
        self.totals.merged -= tokens
        self.merged_in[fragment] -= tokens
        by_name = min(tokens, self.merged_by.get(learner, 0))
        if by_name:
            self.merged_by[learner] -= by_name
        self.departed.merged -= tokens - by_name  # it has left meanwhile, and is not named any more
        account = self.accounts.get(learner)
        again = min(tokens, account.merged[fragment]) if account is not None else 0
        if account is not None:
            account.merged[fragment] -= again
        self._discard(tokens - again, "voided")

    def applied(self, learner: LearnerId, news: Applied) -> None:
        """The fragment was overwritten: what was open and not kept is discarded."""
        account = self.accounts[learner]
        self.trained(learner, news.at_tokens)
        self._pass(account, news.fragment, min(news.at_tokens - news.kept_tokens, account.tokens))
        if news.version >= account.doubt[news.fragment]:
            account.doubt[news.fragment] = NEVER

    def fell_back(self, fragment: Fragment, merged: int) -> None:
        """A fragment goes on from an older value with so many tokens: what was merged into it since is lost."""
        gone = self.merged_in[fragment] - merged
        self.merged_in[fragment] = merged
        self.totals.merged -= gone
        self.totals.lost += gone

    def came_into_doubt(self, fragment: Fragment, until: Version) -> None:
        """Rounds that nobody remembers may have merged what is open. What of it is not merged before ``until`` is
        applied counts as lost: how much of it was only in flight, nobody can tell."""
        for account in self.accounts.values():
            account.doubt[fragment] = until

    def close_account(self, learner: LearnerId, *, lost: bool, why: str) -> None:
        """A life ends: its open work is lost with it, or discarded on purpose."""
        account = self.accounts.pop(learner)
        for p in map(Fragment, range(self.num_fragments)):
            if lost or account.doubt[p] != NEVER:
                self._lose(learner, account.open(p))
            else:
                self._discard(account.open(p), why)
        if learner in self.consumed_by:
            self.consumed_by[learner] = self.consumed_by.pop(learner)

    def fold_departed(self, keep: int) -> None:
        """Of those who have left, name ``keep`` at most: those before them become one sum, so that no stream of fresh
        names makes every commit longer. Nothing else changes."""
        if len(self.consumed_by) <= keep:
            return
        gone = [name for name in self.consumed_by if name not in self.accounts and name not in self.promised_by]
        for name in gone[: max(0, len(gone) - keep)]:
            self.departed.names += 1
            self.departed.consumed += self.consumed_by.pop(name)
            self.departed.merged += self.merged_by.pop(name, 0)
            self.departed.lost += self.lost_by.pop(name, 0)

    def open_total(self) -> int:
        return sum(a.open(Fragment(p)) for a in self.accounts.values() for p in range(self.num_fragments))

    def promised_total(self) -> int:
        return sum(map(sum, self.promised_by.values()))

    def balances(self) -> bool:
        """consumed · P = merged + promised + discarded + lost + open, exactly."""
        settled = self.totals.merged + self.totals.discarded + self.totals.lost
        return self.consumed * self.num_fragments == settled + self.promised_total() + self.open_total()

    def names_add_up(self) -> bool:
        """What each learner has consumed is, together with that of those who left long ago, all that was consumed."""
        return self.consumed == sum(self.consumed_by.values()) + self.departed.consumed

    def in_tokens(self) -> Mapping[str, int]:
        """The totals in whole tokens, which add up exactly."""
        parts = self.in_fragment_tokens()
        return {"consumed": self.consumed, **whole_tokens(parts, consumed=self.consumed, per_token=self.num_fragments)}

    def in_fragment_tokens(self) -> dict[str, int]:
        """What became of all that was consumed."""
        return {
            "merged": self.totals.merged,
            "discarded": self.totals.discarded,
            "lost": self.totals.lost,
            "promised": self.promised_total(),
            "open": self.open_total(),
        }

    def copy(self) -> Ledger:
        """A snapshot that later bookings do not touch."""
        return Ledger(
            num_fragments=self.num_fragments,
            consumed=self.consumed,
            merged_in=list(self.merged_in),
            totals=Totals(merged=self.totals.merged, discarded=self.totals.discarded, lost=self.totals.lost),
            accounts={name: account.copy() for name, account in self.accounts.items()},
            promised_by={name: list(waiting) for name, waiting in self.promised_by.items()},
            discarded_by=dict(self.discarded_by),
            lost_by=dict(self.lost_by),
            merged_by=dict(self.merged_by),
            consumed_by=dict(self.consumed_by),
            departed=replace(self.departed),
        )

    def _has_room_for(self, news: int) -> bool:
        """No run trains on so many tokens; a learner that says so must not make sums that no file holds."""
        return (self.consumed + news) * self.num_fragments <= MOST_FRAGMENT_TOKENS

    def _take(self, learner: LearnerId, fragment: Fragment, tokens: int, total_tokens: int) -> None:
        """They are spoken for, and no longer open."""
        account = self.accounts[learner]
        # What lies before them was overwritten, though we may not have been told yet.
        self._pass(account, fragment, total_tokens - tokens)
        account.merged[fragment] += tokens

    def _book_merged(self, learner: LearnerId, fragment: Fragment, tokens: int) -> None:
        self.totals.merged += tokens
        self.merged_in[fragment] += tokens
        self.merged_by[learner] = self.merged_by.get(learner, 0) + tokens

    def _lose(self, learner: LearnerId, tokens: int) -> None:
        self.totals.lost += tokens
        if tokens:
            self.lost_by[learner] = self.lost_by.get(learner, 0) + tokens

    def _pass(self, account: Account, fragment: Fragment, mark: int) -> None:
        """The work of this fragment begins at ``mark`` now: what lies before it is merged already, or discarded."""
        passed = mark - account.marks[fragment]
        if passed <= 0:
            return
        used = min(passed, account.merged[fragment])
        unmerged = passed - used  # none, mostly
        if unmerged and account.doubt[fragment] != NEVER:
            self.totals.lost += unmerged
        elif unmerged:
            self._discard(unmerged, "in-flight" if used else "not-merged")
        account.marks[fragment] += passed
        account.merged[fragment] -= used

    def _discard(self, tokens: int, why: str) -> None:
        self.totals.discarded += tokens
        if tokens:
            self.discarded_by[why] = self.discarded_by.get(why, 0) + tokens


def whole_tokens(parts: Mapping[str, int], *, consumed: int, per_token: int) -> dict[str, int]:
    """``parts`` in fragment-tokens, of which ``per_token`` make a token, as whole tokens that add up to ``consumed``:
    the fractions go to the largest remainders.

    >>> whole_tokens({"merged": 7, "lost": 4, "open": 1}, consumed=3, per_token=4)
    {'merged': 2, 'lost': 1, 'open': 0}
    """
    whole = {name: value // per_token for name, value in parts.items()}
    missing = consumed - sum(whole.values())
    for name in sorted(parts, key=lambda name: (-(parts[name] % per_token), name))[:missing]:
        whole[name] += 1
    return whole
