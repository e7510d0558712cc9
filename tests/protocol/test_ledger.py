"""Whatever happens in whatever order, every token is accounted for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gruppetto.protocol.ledger import Ledger
from gruppetto.protocol.messages import Applied
from gruppetto.protocol.units import Fragment, LearnerId, Version

A, B = LearnerId("a"), LearnerId("b")

operations = st.lists(
    st.tuples(
        st.sampled_from(
            ["train", "merge", "promise", "keep", "break", "apply", "die", "leave", "join", "void", "fold"]
        ),
        st.sampled_from([A, B]),
        st.integers(0, 2),
        st.integers(-5, 300),
        st.integers(0, 50),
    ),
    max_size=60,
)


@given(operations)
def test_the_books_balance_after_every_entry(script: list[tuple[str, LearnerId, int, int, int]]) -> None:
    ledger = Ledger(num_fragments=3)
    last_merge: dict[LearnerId, tuple[int, int]] = {}
    for what, who, fragment, number, kept in script:
        here = who in ledger.accounts
        if what == "join" and not here:
            ledger.open_account(who)
        elif what == "train" and here:
            ledger.trained(who, number)
        elif what == "merge" and here:
            # As the gate lets it in: trained on, and open.
            total = ledger.accounts[who].tokens
            tokens = min(max(0, number), total)
            if tokens and ledger.is_open(who, Fragment(fragment), tokens, total):
                ledger.merged(who, Fragment(fragment), tokens, total)
                last_merge[who] = (fragment, tokens)
        elif what == "promise" and here:
            total = ledger.accounts[who].tokens
            tokens = min(max(0, number), total)
            waits = ledger.promised_by.get(who, [0, 0, 0])[fragment]
            if tokens and not waits and ledger.is_open(who, Fragment(fragment), tokens, total):
                ledger.promised(who, Fragment(fragment), tokens, total)
        elif what == "keep":
            ledger.kept(who, Fragment(fragment))
        elif what == "break":
            ledger.broken()
            assert ledger.promised_total() == 0
        elif what == "void" and who in last_merge:
            voided, tokens = last_merge.pop(who)
            ledger.voided(who, Fragment(voided), tokens)
        elif what == "apply" and here:
            news = Applied(fragment=Fragment(fragment), version=Version(1), at_tokens=number, kept_tokens=kept)
            ledger.applied(who, news)
        elif what == "fold":
            standing = dict(ledger.in_tokens()), ledger.accounts.copy()
            ledger.fold_departed(kept % 3)
            assert (dict(ledger.in_tokens()), ledger.accounts) == standing
            named = ledger.consumed_by.keys() - ledger.accounts.keys() - ledger.promised_by.keys()
            assert len(named) <= kept % 3
        elif what in ("die", "leave") and here:
            ledger.close_account(who, lost=what == "die", why="left")
        assert ledger.balances() and ledger.names_add_up()
        assert min(ledger.totals.merged, ledger.totals.discarded, ledger.totals.lost, ledger.open_total()) >= 0
        assert sum(ledger.lost_by.values()) + ledger.departed.lost == ledger.totals.lost
        assert sum(ledger.merged_by.values()) + ledger.departed.merged == ledger.totals.merged
        assert min(ledger.merged_by.values(), default=0) >= 0
        whole = ledger.in_tokens()
        parts = whole["merged"] + whole["promised"] + whole["discarded"] + whole["lost"] + whole["open"]
        assert whole["consumed"] == parts == ledger.consumed
        assert ledger.copy() == ledger


def test_the_work_in_flight_is_discarded_by_an_overwrite_and_kept_by_carry() -> None:
    for kept, discarded in ((0, 30), (30, 0)):
        ledger = Ledger(num_fragments=1)
        ledger.open_account(A)
        ledger.trained(A, 130)
        ledger.merged(A, Fragment(0), 100, 100)
        ledger.applied(A, Applied(fragment=Fragment(0), version=Version(1), at_tokens=130, kept_tokens=kept))
        assert (ledger.totals.merged, ledger.totals.discarded, ledger.open_total()) == (100, discarded, kept)


def test_no_token_can_be_merged_twice() -> None:
    ledger = Ledger(num_fragments=1)
    ledger.open_account(A)
    ledger.trained(A, 160)
    ledger.merged(A, Fragment(0), 80, 80)
    assert not ledger.is_open(A, Fragment(0), 81, 160)  # its first token is merged already
    assert ledger.is_open(A, Fragment(0), 80, 160)


def test_an_answer_that_overtakes_the_news_of_an_overwrite_is_booked_where_it_belongs() -> None:
    ledger = Ledger(num_fragments=1)
    ledger.open_account(A)
    ledger.trained(A, 100)
    ledger.merged(A, Fragment(0), 60, 60)
    ledger.trained(A, 150)
    ledger.merged(A, Fragment(0), 50, 150)  # since token 100, where the fragment was overwritten
    assert (ledger.totals.merged, ledger.totals.discarded, ledger.open_total()) == (110, 40, 0)
    ledger.applied(A, Applied(fragment=Fragment(0), version=Version(1), at_tokens=100))
    assert (ledger.totals.merged, ledger.totals.discarded, ledger.open_total()) == (110, 40, 0)


def test_what_could_not_be_published_is_open_again() -> None:
    ledger = Ledger(num_fragments=1)
    ledger.open_account(A)
    ledger.trained(A, 100)
    ledger.merged(A, Fragment(0), 100, 100)
    ledger.voided(A, Fragment(0), 100)
    assert (ledger.totals.merged, ledger.totals.discarded, ledger.open_total()) == (0, 0, 100)
    assert ledger.is_open(A, Fragment(0), 100, 100)


def test_a_dead_learner_loses_only_what_nobody_merged() -> None:
    ledger = Ledger(num_fragments=2)
    ledger.open_account(A)
    ledger.trained(A, 100)
    ledger.merged(A, Fragment(1), 70, 70)
    ledger.close_account(A, lost=True, why="died")
    assert (ledger.totals.merged, ledger.totals.lost, ledger.open_total()) == (70, 130, 0)


def test_a_stream_of_fresh_names_makes_no_commit_longer() -> None:
    ledger = Ledger(num_fragments=2)
    for i in range(50):
        name = LearnerId(f"spot-{i:02}")
        ledger.open_account(name)
        ledger.trained(name, 10)
        ledger.merged(name, Fragment(0), 10, 10)
        ledger.close_account(name, lost=i % 2 == 0, why="left")
        ledger.fold_departed(3)
    assert list(ledger.consumed_by) == ["spot-47", "spot-48", "spot-49"]  # who left last is still named
    assert (ledger.departed.names, ledger.departed.consumed, ledger.departed.merged) == (47, 470, 470)
    assert (ledger.departed.lost, ledger.totals.lost) == (240, 250)
    assert ledger.balances()


def test_what_a_departed_learner_gave_can_still_turn_out_void() -> None:
    ledger = Ledger(num_fragments=1)
    ledger.open_account(A)
    ledger.trained(A, 100)
    ledger.merged(A, Fragment(0), 100, 100)
    ledger.close_account(A, lost=True, why="died")
    ledger.fold_departed(0)
    ledger.voided(A, Fragment(0), 100)
    assert (ledger.departed.merged, ledger.totals.merged, ledger.totals.discarded) == (0, 0, 100)
    assert ledger.balances()
