"""The token ledger: what became of every token that was trained on (section 10).

The unit is the *fragment-token*: one token, seen by one fragment. A learner that trains on n tokens spends n of
them in each of the P fragments; each fragment's share is then merged, discarded or lost on its own. At every
moment, exactly::

    consumed · P  =  merged + discarded + lost + open

``open`` is what a learner has trained since it last received the fragment and nobody has merged yet. At the end of
a run it is settled to zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gruppetto.protocol.messages import Applied
from gruppetto.protocol.units import Fragment, LearnerId

__all__ = ["Account", "Ledger", "Totals"]


@dataclass(slots=True, kw_only=True)
class Account:
    """One life of one learner. Lists have one entry per fragment."""

    tokens: int = 0
    """Tokens trained on in this life, as far as reported."""
    marks: list[int] = field(default_factory=list)
    """The token total from which on each fragment's work is open."""
    merged: list[int] = field(default_factory=list)
    """Tokens after the mark that are merged already."""

    def open(self, fragment: Fragment) -> int:
        return max(0, self.tokens - self.marks[fragment] - self.merged[fragment])


@dataclass(slots=True, kw_only=True)
class Totals:
    """Fragment-tokens by fate, over the whole run."""

    merged: int = 0
    discarded: int = 0
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
    totals: Totals = field(default_factory=Totals)
    accounts: dict[LearnerId, Account] = field(default_factory=dict)
    discarded_by: dict[str, int] = field(default_factory=dict)
    merged_by: dict[LearnerId, int] = field(default_factory=dict)
    """Fragment-tokens merged, per learner, over all its lives."""
    consumed_by: dict[LearnerId, int] = field(default_factory=dict)

    def open_account(self, learner: LearnerId) -> None:
        """A new life begins. The account of the life before must be closed."""
        assert learner not in self.accounts, learner
        zeros = [0] * self.num_fragments
        self.accounts[learner] = Account(marks=list(zeros), merged=list(zeros))

    def trained(self, learner: LearnerId, total_tokens: int) -> None:
        """The learner's own total. A total that is not news changes nothing."""
        account = self.accounts[learner]
        news = total_tokens - account.tokens
        if news > 0:
            account.tokens = total_tokens
            self.consumed += news
            self.consumed_by[learner] = self.consumed_by.get(learner, 0) + news

    def is_open(self, learner: LearnerId, fragment: Fragment, tokens: int, total_tokens: int) -> bool:
        """The last ``tokens`` of the first ``total_tokens`` are open still, all of them: none is merged twice."""
        account = self.accounts[learner]
        return total_tokens - tokens >= account.marks[fragment] + account.merged[fragment]

    def merged(self, learner: LearnerId, fragment: Fragment, tokens: int, total_tokens: int) -> None:
        """The last ``tokens`` of the first ``total_tokens``, open so far, are folded into the global fragment."""
        account = self.accounts[learner]
        # What lies before them was overwritten, though we may not have been told yet.
        self._pass(account, fragment, total_tokens - tokens)
        account.merged[fragment] += tokens
        self.totals.merged += tokens
        self.merged_by[learner] = self.merged_by.get(learner, 0) + tokens

    def voided(self, learner: LearnerId, fragment: Fragment, tokens: int) -> None:
        """A merge that could not be published. Its base has stayed, so its tokens are open again, and will come with
        the next contribution; if the life that trained on them has ended meanwhile, they are discarded."""
        self.totals.merged -= tokens
        self.merged_by[learner] -= tokens
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

    def close_account(self, learner: LearnerId, *, lost: bool, why: str) -> None:
        """A life ends: its open work is lost with it, or discarded on purpose."""
        account = self.accounts.pop(learner)
        rest = sum(account.open(Fragment(p)) for p in range(self.num_fragments))
        if lost:
            self.totals.lost += rest
        else:
            self._discard(rest, why)

    def open_total(self) -> int:
        return sum(a.open(Fragment(p)) for a in self.accounts.values() for p in range(self.num_fragments))

    def balances(self) -> bool:
        """consumed · P = merged + discarded + lost + open, exactly."""
        spent = self.totals.merged + self.totals.discarded + self.totals.lost + self.open_total()
        return self.consumed * self.num_fragments == spent

    def in_tokens(self) -> Mapping[str, int]:
        """The totals in whole tokens, which add up exactly: the fractions go to the largest remainders."""
        parts = {
            "merged": self.totals.merged,
            "discarded": self.totals.discarded,
            "lost": self.totals.lost,
            "open": self.open_total(),
        }
        whole = {name: value // self.num_fragments for name, value in parts.items()}
        missing = self.consumed - sum(whole.values())
        by_remainder = sorted(parts, key=lambda name: (-(parts[name] % self.num_fragments), name))
        for name in by_remainder[:missing]:
            whole[name] += 1
        return {"consumed": self.consumed, **whole}

    def copy(self) -> Ledger:
        """A snapshot that later bookings do not touch."""
        return Ledger(
            num_fragments=self.num_fragments,
            consumed=self.consumed,
            totals=Totals(merged=self.totals.merged, discarded=self.totals.discarded, lost=self.totals.lost),
            accounts={
                name: Account(tokens=a.tokens, marks=list(a.marks), merged=list(a.merged))
                for name, a in self.accounts.items()
            },
            discarded_by=dict(self.discarded_by),
            merged_by=dict(self.merged_by),
            consumed_by=dict(self.consumed_by),
        )

    def _pass(self, account: Account, fragment: Fragment, mark: int) -> None:
        """The work of this fragment begins at ``mark`` now: what lies before it is merged already, or discarded."""
        passed = max(0, mark - account.marks[fragment])
        used = min(passed, account.merged[fragment])
        self._discard(passed - used, "in-flight" if used else "not-merged")
        account.marks[fragment] += passed
        account.merged[fragment] -= used

    def _discard(self, tokens: int, why: str) -> None:
        self.totals.discarded += tokens
        if tokens:
            self.discarded_by[why] = self.discarded_by.get(why, 0) + tokens
