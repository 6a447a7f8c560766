"""Become a server: drop root's rights, ask to die with the parent, then ``exec``.

Run as a script, ``launch.py PARENT_PID UID GID DEATH_SIGNAL PROGRAM ARGUMENT...``. A
process of its own because a ``preexec_fn`` is unsafe beside threads (Python 3.12 warns), and
because the kernel forgets the death signal when the user changes. It costs 20 ms.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Turn into the program named on the command line."""
    parent, uid, gid, death_signal = map(int, sys.argv[1:5])
    os.umask(0o077)
    if os.geteuid() != uid:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if death_signal and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            sys.exit(1)
    os.execv(sys.argv[5], sys.argv[5:])  # noqa: S606  the point of this file


if __name__ == "__main__":
    main()
