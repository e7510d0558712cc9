"""How the values of learners become one: the outer optimizer, merge rules, the cut, what travels in how many bits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gruppetto.errors import SettingError
from gruppetto.numerics.codec import CODECS
from gruppetto.numerics.downlink import DOWNLINKS
from gruppetto.numerics.fragments import FRAGMENTERS
from gruppetto.numerics.merge import rule_for
from gruppetto.numerics.outer import OUTER_PRESETS, OuterSetting, choose_outer

__all__ = ["CodecChoice", "FragmentsChoice", "MergeChoice", "OuterChoice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterChoice:
    """``[outer]``: a preset, of which single values may be changed.

    >>> OuterChoice(lr=0.3).resolve(rounds=None, sync_period=24)[1]
    'nesterov, lr 0.3, momentum 0.9: set explicitly'
    """

    preset: str = "auto"
    """``auto`` goes by the number of outer steps that a fragment will see."""
    optimizer: str | None = None
    """``nesterov`` or ``sgd``."""
    lr: float | None = None
    """η."""
    momentum: float | None = None
    """μ."""
    first_share: float | None = None
    """Of ``lr``, at the beginning of the run ..."""
    final_share: float | None = None
    """... and at its end; in between on a straight line. A run without an end has ``lr`` throughout."""
    average_share: float | None = None
    """Of the run, at its end: the last value of a fragment is the mean of all that it had in this time. It costs four
    bytes a parameter at the syncer, on disk too."""

    def __post_init__(self) -> None:
        names = ("auto", *sorted(OUTER_PRESETS))
        if self.preset not in names:
            raise SettingError(f"is {self.preset!r}", where="outer.preset", fix=f"use one of {', '.join(names)}")
        # Impossible values are refused here, not when the syncer starts.
        self.resolve(rounds=None, sync_period=1)

    def resolve(self, *, rounds: int | None, sync_period: int) -> tuple[OuterSetting, str]:
        """The outer optimizer of a run and, in one sentence, why."""
        setting, why = choose_outer(self.preset, rounds, sync_period)
        names = ("optimizer", "lr", "momentum", "first_share", "final_share", "average_share")
        changed = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if not changed:
            return setting, why
        if changed.get("optimizer") == "sgd" and "momentum" not in changed:
            changed["momentum"] = 0.0
        if changed.get("optimizer", setting.optimizer) == "nesterov" and setting.optimizer == "sgd":
            changed.setdefault("momentum", OUTER_PRESETS["paper"].momentum)
        return choose_outer(replace(setting, **changed), rounds, sync_period)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeChoice:
    """``[merge]``: ``rules = [["regex", "rule"], ...]``; the first that fits a tensor's name decides."""

    rules: tuple[tuple[str, str], ...] = ()
    """Pairs of regex and rule. Embeddings take ``mean`` and everything else ``rda`` unless a pair says otherwise."""

    def __post_init__(self) -> None:
        try:
            rule_for("", (), self.rules)
        except SettingError as error:
            raise SettingError(f"{error.where}: {error.what}", where="merge.rules", fix=error.fix) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentsChoice:
    """``[fragments]``: how the model is cut."""

    how: str = "balanced"
    """``balanced`` (largest tensor first into the smallest fragment), ``layer`` or ``tensor``."""

    def __post_init__(self) -> None:
        if self.how not in FRAGMENTERS:
            raise SettingError(
                f"is {self.how!r}", where="fragments.how", fix=f"use one of {', '.join(sorted(FRAGMENTERS))}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecChoice:
    """``[codec]``: contributions travel as ``uplink``, global fragments as ``downlink``."""

    uplink: str = "bf16"
    """``fp32``, ``bf16``, or with a scale for each block of 128 elements ``int8`` (8.125 bits an element), ``int4`` or
    ``fp4-e3m0`` (4.125 bits). With a scale, what a contribution leaves unsaid is kept by its learner, four bytes an
    element, and said with the next one."""
    downlink: str = "fp32"
    """``fp32``, ``bf16``, ``delta`` or ``delta-int4``. In bf16 learners train from rounded weights. With ``delta`` the
    syncer takes its outer steps in 8.125 bits an element and sends the step to whoever has the value before, bit for
    bit the same on both sides, and the whole value in float32 to everybody else; what a step leaves unsaid is kept at
    the syncer, a byte a parameter, and said with the next one. ``delta-int4``: the same in 4.125 bits. A learner of
    several ranks always gets the whole value."""

    def __post_init__(self) -> None:
        for name, known in (("uplink", CODECS), ("downlink", DOWNLINKS)):
            if getattr(self, name) not in known:
                found, why = getattr(self, name), ", which is for differences" if getattr(self, name) in CODECS else ""
                raise SettingError(
                    f"is {found!r}{why}", where=f"codec.{name}", fix=f"use one of {', '.join(sorted(known))}"
                )
