"""What expires is said once, with whose it is, and withdrawn when it has been renewed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gruppetto.runtime.clock import ManualClock
from gruppetto.runtime.security.identity import Identity, Role
from gruppetto.runtime.security.issuing import Authority
from gruppetto.runtime.security.porter import Porter, Shown
from gruppetto.runtime.security.strangers import Strangers
from gruppetto.runtime.security.watch import Watch

NOW, DAY = 1_800_000_000.0, 86_400.0
SYNCER = Identity(role=Role.SYNCER, name="syncer")


def test_an_alarm_holds_from_two_weeks_before_until_all_is_renewed(tmp_path: Path) -> None:
    authority = Authority(tmp_path, now=NOW)
    authority.found(days=1000)
    authority.make(SYNCER, days=30, hosts=["s"])
    clock, said = ManualClock(), list[str]()
    wall = lambda: NOW + clock.now()  # noqa: E731
    porter = Porter(tmp_path, clock=clock, wall=wall)
    watch = Watch(
        porter=porter,
        strangers=Strangers(now=clock.now),
        files={"this syncer": tmp_path / "syncer.pem", "the authority": tmp_path / "ca.pem"},
        warn=said.append,
        wall=wall,
    )

    def look() -> list[str]:
        said.clear()
        watch.look_at_expiry()
        return list(said)

    assert look() == []
    clock.advance(15.5 * DAY)
    assert look() == []
    clock.advance(DAY)
    assert look() == ["the certificate of this syncer expires in 13.5 days"]
    clock.advance(DAY)
    assert look() == [], "once"
    soon = Shown(identity=Identity(role=Role.LEARNER, name="b"), serial="1", expires_at=wall() + 2 * DAY)
    with porter.inside(soon, None):
        (text,) = look()
        assert text.startswith("the certificate of learner b expires in 2.0 days; the certificate of this syncer")
        assert watch.account()["days_left"] == {"learner b": 2.0, "this syncer": 12.5, "the authority": 982.5}
    (text,) = look()
    assert "learner b" not in text
    clock.advance(13 * DAY)
    look()
    assert watch.account()["days_left"]["this syncer"] == -0.5
    Authority(tmp_path, now=wall()).renew(SYNCER, days=100)
    assert look() == [""], "withdrawn"
    assert look() == []


@pytest.mark.parametrize("broken", ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_file_that_is_being_replaced_is_no_alarm(tmp_path: Path, broken: str) -> None:
    (tmp_path / "syncer.pem").write_text(broken)
    said: list[str] = []
    clock = ManualClock()
    watch = Watch(
        porter=None, strangers=Strangers(now=clock.now), files={"x": tmp_path / "syncer.pem"}, warn=said.append
    )
    watch.look()
    watch.look_at_expiry()
    assert said == [] and watch.account() == {"identities": False, "days_left": {}}
