"""When the next learner will have been silent for too long, found without looking at everybody at every event."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gruppetto.protocol.membership import MemberPhase, Membership
from gruppetto.protocol.messages import Hello
from gruppetto.protocol.units import LearnerId

LIVENESS_S = 10.0
EVENTS = st.lists(
    st.tuples(st.sampled_from(["hello", "heard", "live", "left", "expire"]), st.integers(0, 3), st.floats(0.0, 6.0)),
    max_size=40,
)


@given(EVENTS)
def test_the_next_expiry_is_that_of_the_one_that_was_silent_longest(events: list[tuple[str, int, float]]) -> None:
    members, now = Membership(num_slots=16, max_learners=16), 0.0
    for life, (what, who, passed_s) in enumerate(events):
        now += passed_s
        name = LearnerId("abcd"[who])
        member = members.get(name)
        if what == "hello":
            members.admit(Hello(learner=name, session=f"{name}-{life}", layout_hash="x"), now)
        elif what == "expire":
            members.expire(now, LIVENESS_S)
        elif member is not None:
            if what == "left":
                member.phase = MemberPhase.LEFT
            else:
                member.heard(now)
                member.phase = MemberPhase.LIVE if what == "live" else member.phase
        there = [m.last_heard for m in members if m.phase in (MemberPhase.LIVE, MemberPhase.JOINING)]
        assert members.next_expiry(LIVENESS_S) == (min(there) + LIVENESS_S if there else None)
