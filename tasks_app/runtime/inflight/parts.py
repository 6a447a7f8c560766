"""What the parts of one child share."""

from __future__ import annotations

from dataclasses import dataclass

from tasks_app.domain.config.settings import Settings
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.flow_control.admission import AdmissionControl
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.identity import Identity
from tasks_app.runtime.inflight.inflight import InFlight
from tasks_app.runtime.scan.throttle import PACES, PollPaces
from tasks_app.runtime.scoreboard import Slot


@dataclass(frozen=True, slots=True)
class ChildParts:
    """Made once, by the wiring."""

    settings: Settings
    registry: Registry
    identity: Identity
    database: Database
    slot: Slot
    """The child's record for its parent and its siblings."""
    inflight: InFlight
    admission: AdmissionControl
    paces: PollPaces = PACES
