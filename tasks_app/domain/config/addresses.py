"""Which addresses only this machine can reach."""

from __future__ import annotations

import ipaddress


def is_local(host: str) -> bool:
    """Return False unless the address is surely local; an empty one means all addresses."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
