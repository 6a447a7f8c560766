"""Is an address one that only this machine reaches?"""

from __future__ import annotations

import ipaddress


def is_local(host: str) -> bool:
    """Return False for anything that is not surely here; an empty address means all of them."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
