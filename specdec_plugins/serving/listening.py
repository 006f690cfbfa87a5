"""Sockets that are bound before models load. Imports no server."""

import errno
import socket
from typing import Any


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to the addresses of a host, before models load, so that a port in use is reported at once. They accept
    connections only later. Raises OSError that names the address."""
    found, fault = list[socket.socket](), None
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            try:
                found.append(bound(family, kind, protocol, address))
            except OSError as error:
                fault = error
                if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # localhost, on a machine without IPv6
                    raise
        if fault and not found:
            raise fault
    except OSError as error:
        for each in found:
            each.close()
        advice = "; choose another --port" if error.errno == errno.EADDRINUSE else ""
        raise OSError(error.errno, f"{error.strerror or error}{advice}", f"{host}:{port}") from None
    return found


def bound(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    """A socket with the options that asyncio sets."""
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made
