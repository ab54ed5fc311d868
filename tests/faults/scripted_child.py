"""A nursery's process that plays what it is told, to try the nursery itself: its child says something before anybody knows who it is, and lives until it is
killed or was dead before that was told.
"""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from tests.faults.logs_child import tell


class Orders(msgspec.Struct):
    says: str
    stillborn: bool = False


def main() -> None:
    for line in sys.stdin.buffer:
        orders = msgspec.json.decode(line, type=Orders)
        pid = os.fork()
        if pid == 0:
            while not orders.stillborn:
                signal.pause()
            os._exit(1)
        if orders.stillborn:
            os.waitpid(pid, 0)
        tell(orders.says)
        tell("pid", pid)
        if not orders.stillborn:
            os.waitpid(pid, 0)
        tell("ended")


if __name__ == "__main__":
    main()
