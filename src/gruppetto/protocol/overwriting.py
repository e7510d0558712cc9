"""What ``apply = "overwrite"`` costs: the work done while a fragment was in flight (section 2)."""

from __future__ import annotations

from gruppetto.protocol.messages import ApplyMode

__all__ = ["overwriting_notice"]

A_LOT = 0.2
"""Of all work. The defaults discard a twelfth."""


def overwriting_notice(apply: ApplyMode, *, sync_period: int, overlap_steps: int) -> str:
    """One line with the share and the fix, if overwriting discards much of all work; else "".

    A fragment is in flight for up to τ of the H steps between two synchronisations, and what is trained on it meanwhile
    is overwritten: up to τ/H of all fragment-tokens.

    >>> print(overwriting_notice(ApplyMode.OVERWRITE, sync_period=4, overlap_steps=2))  # doctest: +NORMALIZE_WHITESPACE
    apply = "overwrite" with sync_period = 4 discards up to 50% of all work, what is trained while a fragment is in
    flight; set run.apply = "carry", or run.sync_period = 10 or more
    >>> overwriting_notice(ApplyMode.OVERWRITE, sync_period=24, overlap_steps=2)
    ''
    """
    share = min(1.0, overlap_steps / sync_period)
    if apply is not ApplyMode.OVERWRITE or share <= A_LOT:
        return ""
    return (
        f'apply = "overwrite" with sync_period = {sync_period} discards up to {share:.0%} of all work, what is trained '
        f'while a fragment is in flight; set run.apply = "carry", or run.sync_period = {round(overlap_steps / A_LOT)} '
        "or more"
    )
