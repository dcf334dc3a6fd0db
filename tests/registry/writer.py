"""A server in small: begins a receipt, sends its text, closes it, again and again until it is killed.

    python writer.py URL NAME

Prints "sent <id>" once the text of a receipt has left and "closed <id>" once the client may learn that it is complete.
"""

import sys

from registry.samples import begun, closed

from caw.registry import open_registry
from caw.registry.master_key import MasterKeys

MASTERS = MasterKeys((bytes(range(32)),))


def main(url: str, name: str) -> None:
    receipts = open_registry(url, MASTERS).receipts
    for number in range(10**6):
        id = f"{name}-{number}"
        handle = receipts.begin(begun(id))
        print("sent", id, flush=True)
        handle.close(closed())
        print("closed", id, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
