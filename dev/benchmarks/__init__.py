"""The peers and us, on the same machine, the same servers and the same clock.

``systems/`` says how each system is run, ``scenarios/`` what is measured; ``peers/`` is what runs
inside each system's own environment, so it and ``marks`` need the standard library only.
"""

from __future__ import annotations
