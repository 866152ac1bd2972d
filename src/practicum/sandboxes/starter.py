"""A script: the first thing inside a bubblewrap sandbox, which becomes the command.

Inside there is no network but loopback. The script listens there at the gateway's own port and hands the listening
socket out, through the one socket that was passed in; outside, whoever accepts on it reaches into the sandbox's network
without a forwarder inside. Then it executes the command. So the gateway's address is the same inside and outside, the
port exists inside only, and it is gone with the sandbox.

It is started as `python -I -S starter.py FD PORT COMMAND…` (port 0: no gateway), so it must import nothing but the
standard library.
"""

from __future__ import annotations

import os
import socket
import sys


def main() -> None:
    """Listen, hand over, execute. What goes wrong is told over the socket, since an exit status would be ambiguous."""
    fd, port, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    with socket.socket(fileno=fd) as outside:
        if port:
            try:
                with socket.create_server(("127.0.0.1", port), backlog=512) as server:
                    socket.send_fds(outside, [b"ready\n"], [server.fileno()])
            except OSError as error:
                outside.sendall(f"failed: port {port}: {error.strerror}\n".encode())
                sys.exit(1)
        else:
            outside.sendall(b"ready\n")
        try:
            os.execvp(command[0], command)
        except (OSError, ValueError) as error:
            outside.sendall(f"failed: {getattr(error, 'strerror', None) or error}\n".encode())
            sys.exit(127)


if __name__ == "__main__":
    main()
