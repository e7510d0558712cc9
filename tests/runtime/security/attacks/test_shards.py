"""Whoever says where a shard is could be taken for a syncer: with identities, the syncer's alone may say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.security.attacks.site_of_a_run import Site, learner

from gruppetto.errors import SettingError
from gruppetto.numerics.deal import Shard
from gruppetto.runtime.announcing import Announcer
from gruppetto.runtime.security.identity import Identity, Role
from gruppetto.runtime.setting import SyncerSetting
from gruppetto.runtime.shard_map import DIRECTORY_PATH, Place


def test_shards_know_each_other_by_the_certificates_of_the_run(at_the_site: Callable[..., None]) -> None:
    async def one_of_each(site: Site) -> None:
        for who in (learner("a"), Identity(role=Role.VIEWER, name="v"), Identity(role=Role.OPERATOR, name="o")):
            peer = site.peer(who.name, who)
            assert (await peer.put(DIRECTORY_PATH, b"{}"))[0] == 403
            assert await peer.get(DIRECTORY_PATH) == 200
        assert (await site.stranger().put(DIRECTORY_PATH, b"{}"))[0] == 401
        place = site.house.place / "second"
        how: dict[str, Any] = {"identities": site.house.certs, "directory": site.url}
        setting = SyncerSetting(state=place, shard=Shard(number=2, of=2), **how)
        async with Announcer(setting) as announcer:
            # It has come in, and is told what is wrong with it.
            with pytest.raises(SettingError, match=r"shard 2/2: this run is served by 1 shards, not 2"):
                await announcer.announce(Place(shard="2/2"))

    at_the_site(one_of_each)
