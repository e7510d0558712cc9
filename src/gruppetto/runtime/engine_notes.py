"""What the syncer writes into its trace beside events and decisions: what it is made of, norms, bytes and the books."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from gruppetto.protocol.actions import SyncerAction
from gruppetto.protocol.events import SyncerEvent
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import Round
from gruppetto.runtime.driver import Driver
from gruppetto.runtime.health import Observer
from gruppetto.runtime.parameters import Parameters, StepReport
from gruppetto.runtime.setting import SyncerSetting
from gruppetto.trace.log import TraceWriter

__all__ = ["Notes"]


class Notes:
    """Of one core. Each note has the time of the event that it comes of."""

    def __init__(
        self, trace: TraceWriter, driver: Driver[SyncerEvent, SyncerAction], core: SyncerCore, seen: Observer
    ) -> None:
        self._trace, self._driver, self._core, self._seen = trace, driver, core, seen

    def header(self, made_of: Mapping[str, object], parameters: Parameters, setting: SyncerSetting) -> None:
        """``made_of``: all that a replay needs to make the core again."""
        self._trace.header(
            {
                **made_of,
                "numel": sum(spec.numel for spec in parameters.parts.fragments),
                "uplink": setting.uplink,
                "downlink": setting.downlink,
                "outer": parameters.outer,
            }
        )

    def outer_step(self, round: Round, report: StepReport) -> None:
        self._note(
            "outer-step",
            round=round,
            merged_norm=report.merged_norm,
            update_norm=report.update_norm,
            degenerate=report.degenerate,
        )

    def traffic(self) -> None:
        """Bytes so far, in both directions, and malformed messages."""
        seen = self._seen
        self._note(
            "traffic",
            round=self._core.round,
            up=seen.traffic.up,
            down=seen.traffic.down,
            malformed=seen.malformed,
        )

    def ledger(self) -> None:
        """The books as they stand, and the traffic with them; the operating system has them when this returns."""
        self.traffic()
        ledger = self._core.ledger
        self._note(
            "ledger",
            **ledger.in_tokens(),
            num_fragments=ledger.num_fragments,
            fragment_tokens={
                "merged": ledger.totals.merged,
                "discarded": ledger.totals.discarded,
                "lost": ledger.totals.lost,
                "promised": ledger.promised_total(),
                "open": ledger.open_total(),
            },
            discarded_by=ledger.discarded_by,
            lost_by=ledger.lost_by,
            merged_by=ledger.merged_by,
            consumed_by=ledger.consumed_by,
            departed=asdict(ledger.departed),
        )
        self._trace.flush()

    def _note(self, kind: str, **values: object) -> None:
        self._trace.note(self._driver.now, "syncer", kind, **values)
