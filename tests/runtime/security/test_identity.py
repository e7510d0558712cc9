"""Identities in certificates, and what each role may do."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.runtime.plausible import is_name
from gruppetto.runtime.security.identity import MAY, Deed, Identity, Role, identity_in, identity_of_uri

NAMES = st.text(alphabet=string.ascii_letters + string.digits + "._-", min_size=1, max_size=128).filter(is_name)


@given(st.sampled_from(Role), NAMES)
def test_an_identity_is_what_its_uri_says(role: Role, name: str) -> None:
    identity = Identity(role=role, name=name)
    assert identity_of_uri(identity.uri) == identity
    assert identity_in({"subjectAltName": (("DNS", "x"), ("URI", identity.uri))}) == identity


@given(st.text())
def test_no_text_spells_an_identity_that_could_not_be_a_file(text: str) -> None:
    found = identity_of_uri(text)
    assert found is None or (is_name(found.name) and found.uri == text)


def test_files_of_two_identities_are_two() -> None:
    those = [Identity(role=role, name=name) for role in Role for name in ("syncer", "ca", "learner-a", "a", "viewer")]
    assert len({one.stem for one in those}) == len(those)
    assert {"ca", "tokens", "revoked", "issued"}.isdisjoint(one.stem for one in those)


@pytest.mark.parametrize(
    "uris",
    [
        (),
        ("gruppetto:learner:a", "gruppetto:learner:b"),
        ("gruppetto:learner:a", "spiffe://a"),
        ("gruppetto:king:a",),
        ("gruppetto:learner:",),
        ("gruppetto:learner:a\x00b",),
        ("gruppetto:learner:../a",),
        ("GRUPPETTO:learner:a",),
    ],
)
def test_whoever_could_be_two_or_is_named_oddly_is_nobody(uris: tuple[str, ...]) -> None:
    assert identity_in({"subjectAltName": tuple(("URI", uri) for uri in uris)}) is None


def test_only_learners_train_and_viewers_see_no_weights() -> None:
    assert [role for role in Role if Deed.TRAIN in MAY[role]] == [Role.LEARNER]
    assert MAY[Role.VIEWER] == {Deed.LOOK}
    assert [role for role in Role if Deed.MARK in MAY[role]] == [Role.OPERATOR]
    assert [role for role in Role if Deed.SERVE in MAY[role]] == [Role.SYNCER]
