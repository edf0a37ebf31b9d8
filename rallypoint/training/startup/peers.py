"""Which connections of this process lead to a process of another user of this machine.

Loaded by the start-up module as `_rallypoint_peers`; of Rallypoint it imports nothing. torch's store and gloo check no token,
so another user of the machine could take the place of a rank. The kernel knows the owner of both ends of a connection within
the machine: `sock_diag(7)` is asked for the other end, some 20 microseconds for each connection. The kernel finds an end that
is bound to a network interface only with the number of this interface, and every user may bind a socket so; therefore an end
that is not found is searched for on each interface if its address is one of this machine. An end on another machine, or in
another network namespace (another pod), passes; so does every end on a kernel without `sock_diag`.
"""

import contextlib
import errno
import fcntl
import os
import socket
import struct
import termios
import time

__all__ = ["check", "connections"]

_FDS = "/proc/self/fd"

_SOCK_DIAG_BY_FAMILY, _NETLINK_SOCK_DIAG, _NLMSG_ERROR, _NLM_F_REQUEST = 20, 4, 2, 1
_RTM_GETROUTE, _NETLINK_ROUTE, _RTA_DST, _RTA_OIF, _RTN_LOCAL = 26, 0, 1, 4, 2
_HEADER = struct.Struct("=IHHII")
_ADDRESSES = struct.Struct("!HH16s16s")
_COOKIE = struct.pack("=II", 0xFFFFFFFF, 0xFFFFFFFF)
#: Where the kernel's answer has the state of the end, its addresses, its owner and its inode; an end that no process has
#: accepted yet has no inode.
_STATE_AT = _HEADER.size + 1
_ADDRESSES_AT = _HEADER.size + 4
_OWNER = struct.Struct("=II")
_OWNER_AT = _ADDRESSES_AT + _ADDRESSES.size + 4 + len(_COOKIE) + 12

#: Begins an IPv4 address in the form of IPv6.
_MAPPED = b"\0" * 10 + b"\xff\xff"

#: A listening end: what the kernel finds at the port of an end that is not there.
_LISTENS = 10

#: Seconds for which the other end may wait to be accepted: until then its owner is not known.
_PATIENCE, _PAUSE = 30.0, 0.005

#: Owners of an end that is not on this machine, and of one that no process has.
_ELSEWHERE, _NOBODY = None, -1


def connections() -> dict:  # type: ignore[type-arg]
    """Return the descriptors of all sockets of this process, by a name that no later socket has."""
    found = {}
    for name in os.listdir(_FDS):  # noqa: PTH208  a path object for each would be thrown away
        with contextlib.suppress(OSError):  # it was closed meanwhile
            target = os.readlink(_FDS + "/" + name)  # noqa: PTH115  as above
            if target.startswith("socket:"):
                found[target] = int(name)
    return found


def check(before: dict) -> None:  # type: ignore[type-arg]
    """Look at the connections that were opened since `before`, an earlier result of `connections`.

    Raises:
        PermissionError: one of them leads to a process of another user of this machine, root excepted, or was reset by its
            other end after it had sent data.

    """
    pairs = [pair for name, fd in connections().items() if name not in before and (pair := _ends(fd)) is not None]
    if not pairs:
        return
    try:
        kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
    except OSError:
        return  # a sandbox that does not offer it
    ours = os.getuid()
    with kernel:
        for here, there in pairs:
            owner = _owner(kernel, here, there)
            if owner is not _ELSEWHERE and owner not in (0, ours):
                _refuse(f"to {there[0]} port {there[1]}", "no process" if owner < 0 else f"a process of user {owner}")


def _refuse(where: str, who: str) -> None:
    raise PermissionError(
        errno.EPERM,
        f"the process group has a connection {where}, but the other end of this connection belongs to {who}; "
        f"expected a process of user {os.getuid()}, because all workers of the job run as this user",
    )


def _ends(fd: int) -> "tuple[tuple[str, int], tuple[str, int]] | None":
    with contextlib.ExitStack() as closing:
        try:
            found = closing.enter_context(socket.socket(fileno=os.dup(fd)))
            if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
                return None
            here = found.getsockname()[:2]
        except OSError:  # it was closed meanwhile
            return None
        try:
            return here, found.getpeername()[:2]
        except OSError:
            if _has_data(found):
                _refuse(f"at port {here[1]} that was reset and has unread data", "no process")
            return None  # it listens, or was never connected


def _has_data(found: socket.socket) -> bool:
    try:
        if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        return fcntl.ioctl(found.fileno(), termios.FIONREAD, bytes(4)) != bytes(4)
    except OSError:
        return False


def _owner(kernel: socket.socket, here: tuple, there: tuple) -> "int | None":  # type: ignore[type-arg]
    """Return the user of the other end of a connection, `_ELSEWHERE` or `_NOBODY`."""
    until = time.monotonic() + _PATIENCE
    while True:
        found = _found(kernel, there, here)
        if found is None:
            # If the kernel does not find our own end either, it cannot find any end.
            hidden = _is_of_this_machine(there[0]) and _found(kernel, here, there) is not None
            return _NOBODY if hidden else _ELSEWHERE
        owner, inode = found
        if inode:
            return owner
        if time.monotonic() >= until:
            return _NOBODY
        time.sleep(_PAUSE)


def _found(kernel: socket.socket, own: tuple, other: tuple) -> "tuple[int, int] | None":  # type: ignore[type-arg]
    """Return owner and inode of the end at the address `own` that is connected to `other`; None if there is none.

    Of an end that is on this machine, all interfaces are searched.
    """
    found = _asked(kernel, own, other, 0)
    if found is not None or not _is_of_this_machine(own[0]):
        return found
    answers = (_asked(kernel, own, other, index) for index, _ in socket.if_nameindex())
    return next((answer for answer in answers if answer is not None), None)


def _asked(kernel: socket.socket, own: tuple, other: tuple, interface: int) -> "tuple[int, int] | None":  # type: ignore[type-arg]
    (family, source), (_, destination) = _packed(own[0]), _packed(other[0])
    addresses = _ADDRESSES.pack(own[1], other[1], source, destination)
    # An end that is an IPv6 socket with an IPv4 address has the longer form of its addresses in the answer.
    mapped = (
        _ADDRESSES.pack(own[1], other[1], _MAPPED + source, _MAPPED + destination) if family == socket.AF_INET else addresses
    )
    body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
    body += addresses + struct.pack("=I", interface) + _COOKIE
    kernel.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + body)
    answer = kernel.recv(4096)
    if _HEADER.unpack_from(answer)[1] == _NLMSG_ERROR or len(answer) < _OWNER_AT + _OWNER.size:
        return None
    if answer[_STATE_AT] == _LISTENS or answer[_ADDRESSES_AT : _ADDRESSES_AT + _ADDRESSES.size] not in (addresses, mapped):
        return None
    return _OWNER.unpack_from(answer, _OWNER_AT)


def _is_of_this_machine(host: str) -> bool:
    """Return whether the kernel delivers what is sent to an address on this machine, in this network namespace."""
    (family, packed), (_, _, interface) = _packed(host), host.partition("%")
    body = struct.pack("=BBBBBBBBI", family, 8 * len(packed), 0, 0, 0, 0, 0, 0, 0)
    body += struct.pack("=HH", 4 + len(packed), _RTA_DST) + packed
    try:
        if interface:
            index = int(interface) if interface.isdecimal() else socket.if_nametoindex(interface)
            body += struct.pack("=HHI", 8, _RTA_OIF, index)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE) as kernel:
            kernel.send(_HEADER.pack(_HEADER.size + len(body), _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0) + body)
            answer = kernel.recv(4096)
    except OSError:
        return host.startswith("127.") or host == "::1"
    return _HEADER.unpack_from(answer)[1] != _NLMSG_ERROR and answer[_HEADER.size + 7] == _RTN_LOCAL


def _packed(host: str) -> "tuple[int, bytes]":
    """Return the family and the bytes of an address; an IPv4 address in an IPv6 socket is one of IPv4 to the kernel."""
    host = host.partition("%")[0]
    if ":" not in host:
        return socket.AF_INET, socket.inet_pton(socket.AF_INET, host)
    packed = socket.inet_pton(socket.AF_INET6, host)
    if packed.startswith(_MAPPED):
        return socket.AF_INET, packed[12:]
    return socket.AF_INET6, packed
