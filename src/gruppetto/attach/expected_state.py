"""What state an optimizer must have, before it has taken a step: against this a stranger's is held.

torch's own optimizers are rehearsed: one step on the ``meta`` device, with parameters of the same shapes, makes the
state that a real step would make, and costs neither memory nor arithmetic. Another's ``step`` may do anything, so it is
not called; what can be known of its state is what holds for all optimizers.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gruppetto.attach.holding import is_distributed
from gruppetto.errors import StateError
from gruppetto.runtime.plausible import MAX_COUNT

__all__ = ["CODES", "Kind", "check_keys", "check_kind", "check_values", "rehearse"]

_WHERE = "inner state"
_NEVER_NEGATIVE = frozenset(
    {"step", "exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "variance", "row_var", "col_var", "acc_delta"}
)
"""Counts and squares: roots are taken of them, and powers of them divided by."""
CODES = (torch.uint8, torch.int8)
"""Dtypes of quantised moments."""
CODE_BOOK = 256
"""Numbers in the table that such codes point into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One piece of state, without its values. ``dtype`` None: a plain number."""

    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None

    @classmethod
    def of(cls, value: object) -> Kind:
        return cls(shape=tuple(value.shape), dtype=value.dtype) if isinstance(value, Tensor) else cls()


Kinds = dict[str, Kind]


def rehearse(optimizer: torch.optim.Optimizer) -> list[Kinds | None]:
    """By parameter, in the order of the groups: the state that its first step will make. None: that cannot be known.

    >>> (kinds,) = rehearse(torch.optim.AdamW([torch.zeros(2, 3)]))
    >>> {key: kind.shape for key, kind in kinds.items()}
    {'step': (), 'exp_avg': (2, 3), 'exp_avg_sq': (2, 3)}
    """
    return [kinds for group in optimizer.param_groups for kinds in _rehearsed(optimizer, group)]


def _rehearsed(optimizer: torch.optim.Optimizer, group: dict[str, object]) -> list[Kinds | None]:
    own: list[Tensor] = list(group["params"])  # type: ignore[call-overload]
    if not f"{type(optimizer).__module__}.".startswith("torch.optim."):
        return [None] * len(own)
    twins = [torch.empty(p.shape, dtype=p.dtype, device="meta", requires_grad=True) for p in own]
    for twin in twins:
        twin.grad = torch.empty_like(twin)
    stand_in = object.__new__(type(optimizer))
    stand_in.__dict__.update(optimizer.__dict__)
    stand_in.__dict__.pop("step", None)  # a scheduler's, bound to the real one
    stand_in.state = defaultdict(dict)
    stand_in.param_groups = [{**group, "params": twins, "foreach": False, "fused": False, "capturable": False}]
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(stand_in, hooks, OrderedDict())
    step = type(optimizer).step
    try:
        getattr(step, "__wrapped__", step)(stand_in)  # without the hooks of all optimizers
    except Exception:  # those that look at values fail on the way, with their state made
        if not all(stand_in.state.get(twin) for twin in twins):
            return [None] * len(own)
    return [{str(key): Kind.of(value) for key, value in stand_in.state.get(twin, {}).items()} for twin in twins]


def check_kind(name: str, key: str, kind: Kind, parameter: Tensor, expected: Kinds | None) -> None:
    """Raises :class:`StateError` if the optimizer cannot go on with such a piece of state for ``parameter``."""
    if expected is None:
        shape = tuple(parameter.shape)
        small = kind.shape == () or 0 < _numel(kind.shape) < max(2, parameter.numel(), CODE_BOOK + 1)
        fits = kind.shape == shape or small  # moments, counts, factored moments, and tables of quantised ones
        floats = kind.dtype is None or kind.dtype.is_floating_point or kind.dtype in CODES or kind.shape == ()
    elif key not in expected:
        raise StateError(f"its {key} of {name!r} is nothing that this optimizer keeps", where=_WHERE)
    else:
        mine = expected[key]
        shape, fits = mine.shape, kind.shape == mine.shape
        both = mine.dtype is not None and kind.dtype is not None
        floats = mine.dtype == kind.dtype or (
            both and mine.dtype.is_floating_point and kind.dtype.is_floating_point  # type: ignore[union-attr]
        )
    if not fits:
        raise StateError(f"its {key} of {name!r} is {kind.shape}, this learner's would be {shape}", where=_WHERE)
    if not floats:
        raise StateError(f"its {key} of {name!r} is of {kind.dtype or 'plain numbers'}", where=_WHERE)


def check_keys(keys: Mapping[str, Iterable[str]], order: Iterable[tuple[str, object, Kinds | None, bool]]) -> None:
    """Every parameter has all of its state or none: none is what one has that has had no gradient yet.

    ``order``: name, what it is alike by, expected state, and whether it must have some, for each parameter. Raises
    :class:`StateError`.
    """
    alike: dict[object, set[str]] = {}
    for name, family, expected, must in order:
        got = set(keys.get(name, ()))
        if not got and not must:
            continue
        wanted = alike.setdefault(family, got) if expected is None else set(expected)
        if got != wanted:
            odd = sorted(got ^ wanted)[0] if got ^ wanted else "state"
            raise StateError(f"its state of {name!r} {'lacks' if odd in wanted else 'has'} {odd}", where=_WHERE)
        if must and not got:
            raise StateError(f"it has no state of {name!r}", where=_WHERE)


def check_values(name: str, key: str, value: Tensor | int | float | bool | None) -> None:
    """Raises :class:`StateError` for what no training brings about: NaN, infinity, a negative count."""
    if value is None:
        return
    tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
    if is_distributed(tensor):  # each rank looks at its own: nothing is asked of the others here
        tensor = tensor.to_local()  # type: ignore[attr-defined]
    if not bool(torch.isfinite(tensor).all()):
        raise StateError(f"its {key} of {name!r} holds NaN or infinity", where=_WHERE)
    if tensor.numel() and key in _NEVER_NEGATIVE and bool((tensor < 0).any()):
        raise StateError(f"its {key} of {name!r} is negative", where=_WHERE)
    if key == "step" and bool((tensor > MAX_COUNT).any()):
        raise StateError(f"its {key} of {name!r} is absurdly large", where=_WHERE)


def _numel(shape: tuple[int, ...]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found
