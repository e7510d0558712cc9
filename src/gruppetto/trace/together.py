"""The traces of several shards as one run: what each tells of its own fragments adds up, what all tell counts once.

Every shard is a syncer with rounds and books of its own (docs/sharded-syncer.md), and hears of every step. So rounds,
bytes and refusals of all are the run's, while a learner, its steps and its tokens are the same in each of the traces:
they are taken from the one that saw most of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gruppetto.protocol.ledger import whole_tokens
from gruppetto.trace.measures import LearnerMeasures, Measures, Recovery, RoundMeasures

__all__ = ["together"]

OWN_RESTART = "the syncer restarted"


def together(shards: Sequence[Measures]) -> Measures:
    """The whole run, from what the traces of its shards say, the first one's first; each has its name in ``shard``.

    Times count from the first record of all. The run has ended when the last shard has. Evaluations, training losses
    and deaths are those of the first shard, which alone is told of them.
    """
    began = [each.began_wall_s for each in shards if each.began_wall_s is not None]
    zero_s = min(began, default=None)
    moved = [_later(each, zero_s) for each in shards]
    first = moved[0]
    rounds = sorted((r for each in moved for r in each.rounds.values()), key=lambda r: r.closed_at)
    names = sorted({name for each in moved for name in each.learners})
    ends = [each.ended_at for each in moved if each.ended_at is not None]
    tokens, per_name, fragment_tokens = _tokens(moved, ended=len(ends) == len(moved))
    return replace(
        first,
        header={**first.header, "numel": _sum(each.header.get("numel") for each in moved)},
        rounds=dict(enumerate(rounds)),
        learners={name: _learner(name, moved, rounds) for name in names},
        recoveries=_recoveries(moved),
        alarms=sorted(
            (replace(said, text=f"shard {each.shard}: {said.text}") for each in moved for said in each.alarms),
            key=lambda said: said.t,
        ),
        rejected=_counts(each.rejected for each in moved),
        clipped=_counts(each.clipped for each in moved),
        tokens=tokens,
        fragment_tokens=fragment_tokens,
        num_fragments=sum(each.num_fragments for each in moved),
        discarded_by=_counts(each.discarded_by for each in moved),
        lost_by=_counts(each.lost_by for each in moved),
        consumed_by=per_name,
        recorded_tokens=None,
        balanced=all(each.balanced for each in moved),
        up_bytes=_sum(each.up_bytes for each in moved),
        down_bytes=_sum(each.down_bytes for each in moved),
        begun_at=min((each.begun_at for each in moved if each.begun_at is not None), default=None),
        ended_at=max(ends) if len(ends) == len(moved) else None,
        wall_s=max(each.wall_s for each in moved),
        replay=None,
        shard="",
        shards=tuple(moved),
    )


def _later(found: Measures, zero_s: float | None) -> Measures:
    """Its times as seconds since ``zero_s`` by the clock on the wall; as they are where that is not known."""
    if zero_s is None or found.began_wall_s is None:
        return found
    by_s = found.began_wall_s - zero_s

    def moved(t: float | None) -> float | None:
        return None if t is None else t + by_s

    return replace(
        found,
        began_wall_s=zero_s,
        begun_at=moved(found.begun_at),
        ended_at=moved(found.ended_at),
        wall_s=found.wall_s + by_s,
        rounds={
            number: replace(r, asked_at=r.asked_at + by_s, closed_at=r.closed_at + by_s, done_at=moved(r.done_at))
            for number, r in found.rounds.items()
        },
        learners={
            name: replace(
                learner,
                first_live=moved(learner.first_live),
                gone_at=moved(learner.gone_at),
                states=[(t + by_s, state) for t, state in learner.states],
                busy=[(a + by_s, b + by_s) for a, b in learner.busy],
            )
            for name, learner in found.learners.items()
        },
        alarms=[replace(said, t=said.t + by_s, over_t=moved(said.over_t)) for said in found.alarms],
    )


def _learner(name: str, shards: Sequence[Measures], rounds: Sequence[RoundMeasures]) -> LearnerMeasures:
    """As the shard has seen it that saw most of it; merged in a round where any shard merged its work."""
    seen = [each.learners[name] for each in shards if name in each.learners]
    most = max(seen, key=lambda learner: (learner.useful_s, learner.steps))
    return replace(most, merged_rounds=len({r.round for r in rounds if name in r.participants}))


def _tokens(shards: Sequence[Measures], *, ended: bool) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Tokens by fate, tokens by learner, and fragment-tokens by fate. Every token is consumed once, in all fragments.

    What a shard was never told of, since it was away until the learner had gone, is lost to its fragments; in a run
    that has not ended it may still be told.
    """
    per_name: dict[str, int] = {}
    for each in shards:
        for name, count in each.consumed_by.items():
            per_name[name] = max(per_name.get(name, 0), count)
    totals = [each.tokens.get("consumed", 0) for each in shards]
    all_named = all(each.tokens.get("consumed", 0) == sum(each.consumed_by.values()) for each in shards)
    # Where books have forgotten names, whoever is one of the nameless in one may be named in another.
    consumed = max(max(totals), sum(per_name.values()) if all_named else 0)
    per_token = sum(each.num_fragments for each in shards)
    parts = dict.fromkeys(("merged", "discarded", "lost", "promised", "open"), 0)
    parts |= _counts(each.fragment_tokens for each in shards)
    parts["lost" if ended else "open"] += consumed * per_token - sum(parts.values())
    if not per_token:
        return {}, per_name, {}
    return {"consumed": consumed, **whole_tokens(parts, consumed=consumed, per_token=per_token)}, per_name, parts


def _recoveries(shards: Sequence[Measures]) -> list[Recovery]:
    """Who dies, or loses its network, is gone for all shards, and told of once; the restart of a shard is its own."""
    told: list[Recovery] = []
    for each in shards:
        known = Counter((recovery.learner, recovery.cause) for recovery in told)
        for recovery in each.recoveries:
            if recovery.cause == OWN_RESTART:
                told.append(replace(recovery, cause=f"shard {each.shard} restarted"))
            elif known[recovery.learner, recovery.cause] > 0:
                known[recovery.learner, recovery.cause] -= 1
            else:
                told.append(recovery)
    return told


def _counts(tables: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for table in tables:
        total.update(table)
    return dict(sorted(total.items()))


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
