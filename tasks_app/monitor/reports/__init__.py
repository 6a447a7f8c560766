"""Reports: what happened since an instant, to be printed or mailed."""

from __future__ import annotations
