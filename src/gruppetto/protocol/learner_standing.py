"""What a learner's core knows, and what it tells of itself. ``applying``, ``offering`` and ``learner`` stand on it."""

from __future__ import annotations

from dataclasses import dataclass

from gruppetto.protocol.actions import LearnerAction
from gruppetto.protocol.messages import Applied, ApplyMode, Marker, Refusal, Welcome
from gruppetto.protocol.rests import Rests
from gruppetto.protocol.schedule import Schedule
from gruppetto.protocol.state import LearnerState
from gruppetto.protocol.units import NEVER, NO_EPOCH, UNBORN, Epoch, Fragment, Incarnation, LearnerId, Round, Version

__all__ = ["FragmentState", "LearnerStanding", "Moment"]


@dataclass(slots=True, kw_only=True)
class FragmentState:
    """What a learner knows of one fragment."""

    version: Version = NEVER
    """The version of its base."""
    from_steps: int = 0
    """The learner's total of steps from which on they count for this fragment: when it was last received. So c_steps,
    the steps since, grow by themselves."""
    from_tokens: int = 0
    """The same of c_tokens."""


@dataclass(slots=True)
class Moment:
    """The totals at a boundary: with those from which on they count, they are the counters of every snapshot that was
    taken there. Nobody changes them; frozen, they would take thrice as long to make."""

    steps: int
    tokens: int
    cursor: int


class LearnerStanding:
    """The state of a learner between two events."""

    # In an object of more than thirty attributes without slots, CPython looks every method up anew at each call: first
    # in the object's own dictionary, then along its classes. With slots a call is found where it was the last time.
    __slots__ = (
        "_accepts_stale",
        "_alpha",
        "_apply",
        "_arrived",
        "_continues",
        "_has_rests",
        "_held_back",
        "_last_asked",
        "_marker",
        "_of_another_life",
        "_out",
        "_owed",
        "_rests",
        "_resumed",
        "_saved_in",
        "_schedule",
        "_searching_in",
        "_sent",
        "_snapshots",
        "_started_at",
        "_taken_at",
        "_usual_step_s",
        "_wanted",
        "_wants_snapshots",
        "_window",
        "begun",
        "clippings",
        "clock",
        "cursor",
        "donates_at",
        "epoch",
        "finished",
        "fragments",
        "incarnation",
        "layout_hash",
        "learner",
        "leaving",
        "linked",
        "newest_round",
        "recovering",
        "recovers",
        "refusal",
        "rejections",
        "rounds",
        "run_id",
        "session",
        "slot",
        "step_s",
        "steps",
        "tokens",
    )

    def __init__(
        self, learner: LearnerId, *, session: str, layout_hash: str, recovers: bool = False, donates_at: str = ""
    ) -> None:
        self.learner, self.session, self.layout_hash = learner, session, layout_hash
        self.recovers, self.recovering = recovers, False
        """A state is to be looked for at the next Welcome; it is being looked for."""
        self.donates_at = donates_at
        self.run_id = ""
        self.epoch, self.incarnation = Epoch(0), Incarnation(0)
        self.clock = 0
        self.newest_round = Round(0)
        self.rounds: Round | None = None
        self.slot, self.cursor = 0, 0
        self.steps, self.tokens = 0, 0
        self.fragments: list[FragmentState] = []
        self.linked = False
        """Welcomed, and the link has not closed since."""
        self.begun = False
        self.finished = False
        self.leaving = False
        """It has had notice, and gives what it has."""
        self.refusal: Refusal | None = None
        self.rejections: dict[str, int] = {}
        self.clippings: dict[str, int] = {}
        self._schedule: Schedule | None = None
        self._window, self._apply, self._alpha = 0, ApplyMode.OVERWRITE, 0.0
        self._accepts_stale = False
        """The syncer takes work on a base that is not the current one."""
        self.step_s = 0.0
        """Seconds that the last step took."""
        self._usual_step_s: float | None = None
        self._started_at: float | None = None
        self._arrived: dict[Fragment, Version] = {}
        self._wanted: dict[Fragment, Version] = {}
        self._snapshots: set[Fragment] = set()
        """At hand, all of one boundary; a fragment that is applied has none until the next."""
        self._taken_at = Moment(0, 0, 0)
        self._sent: dict[Fragment, tuple[Round, Moment]] = {}
        """For which round, and of which moment, it has answered since it received the fragment."""
        self._rests, self._has_rests = Rests(), False
        """Contributions whose rest may be kept; some was, or came with a checkpoint."""
        self._owed: dict[Fragment, Round] = {}
        self._last_asked = Round(0)
        self._of_another_life: set[Fragment] = set()
        self._held_back: dict[Fragment, Version] = {}
        """What is to be pulled once the search for a state has ended, unless it was found."""
        self._marker: Marker | None = None
        """A checkpoint's cut, to be made at the next boundary."""
        self._resumed = False
        """It goes on from a checkpoint in the life that it was saved in, and has not been welcomed since."""
        self._continues, self._saved_in, self._searching_in = "", NO_EPOCH, NO_EPOCH
        self._wants_snapshots = False
        """It has been resumed after a step: what that step led to may be asked for before the next one."""
        self._out: list[LearnerAction] = []

    def snapshot(self) -> LearnerState:
        """What a checkpoint must hold."""
        steps, tokens = self.steps, self.tokens
        return LearnerState(
            run_id=self.run_id,
            clock=self.clock,
            newest_round=self.newest_round,
            fragments=tuple((f.version, steps - f.from_steps, tokens - f.from_tokens) for f in self.fragments),
            steps=steps,
            tokens=tokens,
            cursor=self.cursor,
            session=self.session,
            incarnation=self.incarnation,
            slot=self.slot,
            epoch=self.epoch,
        )

    def restore(self, state: LearnerState, *, same_life: bool = False) -> None:
        """Go on from a checkpoint, before the first Welcome.

        Only what has changed since is pulled; every other base is applied again. The work since those bases belonged to
        an earlier life, whose account is closed: it leaves the model, and the counters start at zero.

        ``same_life``: the whole run goes on from one moment, the syncer too. It awaits this life and has kept its
        account, so counters, data slot and work go on as if nothing had happened. If it does not (the run was not
        resumed, or another process was here before), this becomes a new life like any other.
        """
        assert not self.linked, "restore before connecting"
        self.run_id = state.run_id
        self.clock, self.newest_round = state.clock, state.newest_round
        self.cursor = state.cursor
        self.recovers = False  # this is what it begins from
        self._saved_in = state.epoch
        if not same_life:
            self.fragments = [FragmentState(version=version) for version, _, _ in state.fragments]
            return
        self._continues, self.incarnation, self.slot = state.session, state.incarnation, state.slot
        self.steps, self.tokens = state.steps, state.tokens
        self.fragments = [
            FragmentState(version=v, from_steps=state.steps - steps, from_tokens=state.tokens - tokens)
            for v, steps, tokens in state.fragments
        ]
        self._resumed = self._has_rests = True

    # ── what it tells ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def synchronised(self) -> bool:
        """It has received every fragment at least once."""
        return bool(self.fragments) and all(f.version != NEVER for f in self.fragments)

    @property
    def ready(self) -> bool:
        """It holds the global weights and training has begun: the first step may be made."""
        return self.begun and self.synchronised

    @property
    def published(self) -> tuple[Version, ...]:
        """The newest versions of which the syncer has told, while it looks for a state to begin from."""
        return tuple(self._held_back.get(Fragment(p), NEVER) for p in range(len(self.fragments)))

    @property
    def held(self) -> tuple[Version, ...]:
        """The version of every base."""
        return tuple(f.version for f in self.fragments)

    @property
    def has_arrived(self) -> bool:
        """Something is to be applied at the next boundary."""
        return bool(self._due(self.newest_round))

    @property
    def wants_boundary(self) -> bool:
        """There is something to do at the next boundary; whoever is not training may make one at once."""
        if self.has_arrived or self._marker is not None or self._wants_snapshots:
            return True
        return bool(self._owed) and any(self._has_work(p) and not self._is_vain(p) for p in self._owed)

    def c_steps(self, fragment: Fragment) -> int:
        """Inner steps since the fragment was last received."""
        return self.steps - self.fragments[fragment].from_steps

    def c_tokens(self, fragment: Fragment) -> int:
        """Tokens since the fragment was last received."""
        return self.tokens - self.fragments[fragment].from_tokens

    @property
    def run_ahead(self) -> int:
        """How many steps it is past the newest round it has seen.

        A round is not seen while weights of it are on their way that the next one asks for: what is trained on the old
        ones meanwhile, that one would refuse.
        """
        seen = self.newest_round
        if self._wanted and self._schedule is not None:
            due = self._schedule.due(Round(seen + 1))
            seen = min((Round(self._wanted[p] - 1) for p in due if p in self._wanted), default=seen)
        return max(0, self.clock - seen)

    def is_too_far(self, most: int) -> bool:
        """More than ``most`` steps past the newest round, and no round waits for another step of this learner's own."""
        return self.run_ahead > most and not any(
            not self._has_work(p) and self._on_its_way(p) == NEVER for p in self._owed
        )

    @property
    def work(self) -> int:
        """Fragment-tokens since each fragment was last received, but for contributions that are on their way, or are
        in a value that is."""
        away = {
            p: then.tokens
            for p, (round, then) in self._sent.items()
            if round > self.newest_round or round == self._on_its_way(p)
        }
        return sum(self.tokens - away.get(Fragment(p), f.from_tokens) for p, f in enumerate(self.fragments))

    @property
    def gives_more(self) -> bool:
        """It has had notice, and will have more to give when a value has come that lets it keep its work: one that is
        on its way, or that is made of what it has given to the open round."""
        return self.leaving and self._apply is ApplyMode.CARRY and any(map(self._will_carry, self._sent))

    # ── whose word counts ────────────────────────────────────────────────────────────────────────────────────────

    def knows_newer(self, said: Welcome | Refusal) -> bool:
        """A later life of the syncer has spoken to this learner: whoever says this has lost his authority."""
        return 0 < said.epoch < self.epoch

    def is_newborn(self, welcome: Welcome) -> bool:
        """``welcome`` begins a new life, or says that none is left to be lived. Who goes on from a part is told so: its
        number alone may be a coincidence."""
        another = welcome.incarnation == UNBORN or welcome.incarnation != self.incarnation
        return another or (self._resumed and not welcome.goes_on)

    def still_stands(self, saved_in: Epoch) -> bool:
        """Bases that were saved in that life of the syncer are what their versions say. After another life began they
        need not be: the run may have been resumed from an earlier moment, and have made these rounds anew."""
        return saved_in == self.epoch

    @property
    def search_stands(self) -> bool:
        """What the search brings is of this run: no other life of the syncer has begun since it did."""
        return self.still_stands(self._searching_in)

    # ── small parts ──────────────────────────────────────────────────────────────────────────────────────────────

    def _has_work(self, fragment: Fragment) -> bool:
        """A step on top of a base."""
        state = self.fragments[fragment]
        return state.from_steps < self.steps and state.version != NEVER

    def _on_its_way(self, fragment: Fragment) -> int:
        """The version, and so the round, of a value that is to take the place of the base; NEVER if there is none."""
        newest = max(self._wanted.get(fragment, NEVER), self._arrived.get(fragment, NEVER))
        return newest if newest > self.fragments[fragment].version else NEVER

    def _will_carry(self, fragment: Fragment) -> bool:
        """What was done since its last contribution is kept when the value comes that this is for."""
        round, then = self._sent[fragment]
        return then.steps < self.steps and (round > self.newest_round or round == self._on_its_way(fragment))

    def _is_vain(self, fragment: Fragment) -> bool:
        """To offer work on this base leads to nothing, since a newer value is on its way here.

        The syncer would refuse it: as stale, or as merged already if a contribution of the same work is in that value.
        Under ``carry`` that value is to keep what was done since the contribution that is in it; another offer would
        take that memory's place. Who leaves and has none in it has nothing to forget.
        """
        newest = self._on_its_way(fragment)
        if newest == NEVER:
            return False
        if not self._accepts_stale or (fragment in self._sent and self._sent[fragment][0] == newest):
            return True
        return self._apply is ApplyMode.CARRY and not self.leaving

    def _due(self, round: Round) -> list[Fragment]:
        """What has arrived and is not newer than ``round``; a base that is held already may be applied again anyhow."""
        arrived, fragments = self._arrived.items(), self.fragments
        return sorted([p for p, version in arrived if version <= round or version <= fragments[p].version])

    def _here(self, fragment: Fragment, held: Version) -> Version:
        """What is here and not announced yet counts too: it could be of a round that a resumed run has not made."""
        return held if held == NEVER else max(held, self._arrived.get(fragment, NEVER))

    def _bases_held(self) -> tuple[Applied, ...]:
        """All that it has applied, said again: the syncer's part of the cut is older than the learner's."""
        return tuple(
            Applied(fragment=Fragment(p), version=f.version, at_tokens=f.from_tokens)
            for p, f in enumerate(self.fragments)
        )
