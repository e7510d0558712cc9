"""Leaving on notice, against a real syncer on loopback: what was trained is merged, and nothing is waited for."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gruppetto
from gruppetto.errors import SettingError
from gruppetto.launch.ask import fetch_status

Make = Callable[..., Any]
Start = Callable[..., Any]
TOKENS = 16
FRAGMENTS = 3
QUIET = {"num_fragments": FRAGMENTS, "sync_period": 100, "uplink": "fp32"}
"""Rounds close, and nothing is due in them for a while."""


def attached(url: str, model: Any, **how: Any) -> tuple[gruppetto.Learner, Callable[[], None]]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    how = {"tokens_per_step": TOKENS, "quiet": True, "name": "a"} | how
    learner = gruppetto.Learner(model, optimizer, syncer=url, **how)

    def step() -> None:
        model(*model.batch(learner.cursor)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return learner, step


def alive() -> list[str]:
    """Threads of learners; the syncer's are in this process too."""
    mine = {"gruppetto-learner", "gruppetto-heartbeat"}
    return [thread.name for thread in threading.enumerate() if thread.name in mine]


def books(url: str) -> dict[str, int]:
    status = fetch_status(url)
    return {**status["fragment_tokens"], "consumed": FRAGMENTS * status["tokens"]["consumed"]}


def test_what_a_leaving_learner_has_is_with_the_syncer(
    syncer: Start, toy: Make, caplog: pytest.LogCaptureFixture
) -> None:
    url = syncer(**QUIET).url
    learner, step = attached(url, toy())
    with learner, caplog.at_level(logging.WARNING, "gruppetto.learner"):
        for n in range(4):
            if n == 3:
                learner.leave()
            step()
        assert learner.left
        step()  # nobody's
        found = books(url)
    assert found["consumed"] == found["promised"] == FRAGMENTS * 4 * TOKENS
    assert (found["merged"], found["lost"], found["discarded"], found["open"]) == (0, 0, 0, 0)
    said = [r.getMessage() for r in caplog.records if "left on notice" in r.getMessage()]
    assert len(said) == 1 and "192 fragment-tokens of 3 fragments were given, 0 discarded" in said[0]


def test_what_was_promised_is_merged_in_its_round_and_whoever_comes_back_goes_on_behind_it(
    syncer: Start, toy: Make
) -> None:
    url = syncer(rounds=12, num_fragments=FRAGMENTS, sync_period=6, uplink="fp32").url
    learner, step = attached(url, toy())
    with learner:
        step()
        learner.leave()
        assert list(learner.until_finished([1])) == []
        given = books(url)
    # What is due in the round that is open now is an answer to it already.
    assert given["promised"] + given["merged"] == FRAGMENTS * TOKENS
    again, step = attached(url, toy(2), max_run_ahead=1)
    with again:
        assert again.cursor == 1
        for _ in again.until_finished(itertools.count()):
            step()
        assert again.finished
    found = books(url)
    assert found["promised"] == 0
    assert found["merged"] >= FRAGMENTS * TOKENS
    assert found["consumed"] == found["merged"] + found["discarded"] + found["lost"] + found["open"]


@pytest.mark.parametrize("kind", ["event", "function"])
def test_a_notice_is_polled_at_the_boundaries(syncer: Start, toy: Make, kind: str) -> None:
    told = threading.Event()
    learner, step = attached(syncer(**QUIET).url, toy(), notice=told if kind == "event" else told.is_set)
    with learner:
        step()
        assert not learner.left
        told.set()
        step()
        assert learner.left


def test_sigterm_is_notice_and_a_second_one_does_what_it_did_before(syncer: Start, toy: Make) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        learner, step = attached(syncer(**QUIET).url, toy(), leave_on_sigterm=True)
        with learner:
            step()
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            step()
            assert learner.left
        assert heard == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_by_default_the_loop_keeps_its_own_handler(syncer: Start, toy: Make) -> None:
    before = signal.getsignal(signal.SIGTERM)
    learner, step = attached(syncer(**QUIET).url, toy())
    with learner:
        step()
        assert signal.getsignal(signal.SIGTERM) is before


def test_a_learner_that_still_waits_for_its_run_leaves_too(toy: Make) -> None:
    told = threading.Event()
    told.set()
    learner, _ = attached("http://127.0.0.1:9", toy(), notice=told)
    with learner:
        assert learner.left
        assert list(learner.until_finished([1])) == []


def test_without_time_to_give_anything_it_still_says_goodbye(syncer: Start, toy: Make) -> None:
    url = syncer(**QUIET).url
    learner, step = attached(url, toy())
    with learner:
        step()
        learner.leave(within_s=0)
        step()
        assert fetch_status(url)["learners"]["a"]["state"] == "left"
    found = books(url)
    assert found["consumed"] == found["promised"] + found["discarded"]


def test_in_another_thread_sigterm_cannot_be_heard(syncer: Start, toy: Make) -> None:
    learner, _ = attached(syncer(**QUIET).url, toy(), leave_on_sigterm=True)
    found: list[Exception] = []

    def enter() -> None:
        try:
            learner.__enter__()
        except SettingError as wrong:
            found.append(wrong)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert "only the main thread can handle a signal" in str(found[0])


@pytest.mark.parametrize(
    "wrong", [{"notice": 3}, {"leave_within_s": -1.0}, {"leave_within_s": True}, {"leave_within_s": "soon"}]
)
def test_what_is_no_notice_is_refused(toy: Make, wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"Learner\.(notice|leave_within_s)"):
        attached("http://127.0.0.1:9", toy(), **wrong)


def test_closed_by_another_thread_everything_is_given_back(syncer: Start, toy: Make) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        url = syncer(**QUIET).url
        own, model = signal.getsignal(signal.SIGTERM), toy()
        learner, step = attached(url, model, leave_on_sigterm=True)
        learner.__enter__()
        step()
        failed: list[BaseException] = []

        def close() -> None:
            try:
                learner.close()
            except BaseException as wrong:
                failed.append(wrong)

        closer = threading.Thread(target=close)
        closer.start()
        closer.join()
        assert not failed and learner.left
        assert not model._forward_pre_hooks
        assert not alive()
        assert fetch_status(url)["learners"]["a"]["state"] == "left"
        # Its handler could not be put back from there: it hands the signal on, and goes.
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_second_close_puts_back_the_handler_that_another_thread_could_not(syncer: Start, toy: Make) -> None:
    before = signal.getsignal(signal.SIGTERM)
    learner, _ = attached(syncer(**QUIET).url, toy(), leave_on_sigterm=True)
    learner.__enter__()
    closer = threading.Thread(target=learner.close)
    closer.start()
    closer.join()
    assert signal.getsignal(signal.SIGTERM) is not before
    learner.close()
    assert signal.getsignal(signal.SIGTERM) is before


def test_whatever_fails_in_a_close_the_rest_is_given_back(
    syncer: Start, toy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = toy()
    learner, step = attached(syncer(**QUIET).url, model)
    learner.__enter__()
    step()
    assert alive()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(learner._holdings.model, "check_unchanged", interrupted)
        with pytest.raises(KeyboardInterrupt):
            learner.close()
    assert learner.left and not model._forward_pre_hooks
    assert not alive()
    learner.close()


def test_a_hook_that_raises_is_said_once_and_is_no_notice(
    syncer: Start, toy: Make, caplog: pytest.LogCaptureFixture
) -> None:
    away = True

    def hook() -> bool:
        if away:
            raise OSError("metadata server away")
        return True

    url = syncer(**QUIET).url
    learner, step = attached(url, toy(), notice=hook)
    with caplog.at_level(logging.WARNING, "gruppetto.learner"):
        with learner:
            for _ in learner.until_finished(range(3)):
                step()
            assert not learner.left
        assert fetch_status(url)["learners"]["a"]["state"] == "left"
        again, step = attached(url, toy(), notice=hook, name="b")
        with again:
            step()
            away = False
            step()
            assert again.left
    said = [r.getMessage() for r in caplog.records if "hook raised" in r.getMessage()]
    assert len(said) == 2 and "OSError('metadata server away')" in said[0]  # each learner once


@pytest.mark.parametrize("how", ["close", "leave", "close in another thread"])
def test_once_it_has_left_the_items_end(syncer: Start, toy: Make, how: str) -> None:
    learner, step = attached(syncer(**QUIET).url, toy())
    seen = []
    with learner:
        for item in learner.until_finished(itertools.count()):
            seen.append(item)
            step()
            if item == 2 and how == "close in another thread":
                closer = threading.Thread(target=learner.close)
                closer.start()
                closer.join()
            elif item == 2:
                (learner.close if how == "close" else learner.leave)()
        assert learner.left
        assert seen == [0, 1, 2]
        assert list(learner.until_finished([1])) == []


def test_closed_while_the_next_item_is_made_it_is_not_given_out(syncer: Start, toy: Make) -> None:
    learner, step = attached(syncer(**QUIET).url, toy())

    def items() -> Any:
        yield 0
        learner.close()
        yield 1

    with learner:
        for item in learner.until_finished(items()):
            assert item == 0
            step()


def test_a_step_by_hand_after_close_is_nobodys(syncer: Start, toy: Make) -> None:
    learner, _ = attached(syncer(**QUIET).url, toy(), hook=False)
    with learner:
        learner.step()
        learner.close()
        counted = learner.clock
        learner.step()
        assert learner.clock == counted
