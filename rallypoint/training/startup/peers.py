"""Which connections of this process lead to a process of another user of this machine.

Loaded by the start-up module as `_rallypoint_peers`; of Rallypoint it imports nothing. torch's store and gloo check no token,
so another user of the machine could take the place of a rank. The kernel knows the owner of both ends of a connection within
the machine: `sock_diag(7)` is asked for the other end, some 20 microseconds for each connection. An end on another machine, or
in another network namespace (another pod), is not found, and passes; so does every end on a kernel without `sock_diag`.
"""

import contextlib
import errno
import os
import socket
import struct
import time

__all__ = ["check", "connections"]

_FDS = "/proc/self/fd"

_SOCK_DIAG_BY_FAMILY, _NETLINK_SOCK_DIAG, _NLMSG_ERROR, _NLM_F_REQUEST = 20, 4, 2, 1
_HEADER = struct.Struct("=IHHII")
_ADDRESSES = struct.Struct("!HH16s16s")
_ANY = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
#: Where the owner and the inode are in the kernel's answer; an end that no process has accepted yet has no inode.
_OWNER = struct.Struct("=II")
_OWNER_AT = _HEADER.size + 4 + _ADDRESSES.size + len(_ANY) + 12

#: Seconds for which the other end may wait to be accepted: until then its owner is not known.
_PATIENCE, _PAUSE = 30.0, 0.005


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
        PermissionError: one of them leads to a process of another user of this machine, root excepted.

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
            if owner is not None and owner not in (0, ours):
                who = "no process" if owner < 0 else "a process of user " + str(owner)
                raise PermissionError(
                    errno.EPERM,
                    f"the process group has a connection to {there[0]} port {there[1]}, but the other end of this connection "
                    f"belongs to {who}; expected a process of user {ours}, because all workers of the job run as this user",
                )


def _ends(fd: int) -> "tuple[tuple[str, int], tuple[str, int]] | None":
    try:
        with socket.socket(fileno=os.dup(fd)) as found:
            if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
                return None
            return found.getsockname()[:2], found.getpeername()[:2]
    except OSError:  # it was closed meanwhile, or it listens
        return None


def _owner(kernel: socket.socket, here: tuple, there: tuple) -> "int | None":  # type: ignore[type-arg]
    """Return the user of the other end of a connection; None where it is not on this machine, -1 where nobody accepts it."""
    request = _request(here, there)
    until = time.monotonic() + _PATIENCE
    while True:
        kernel.send(request)
        answer = kernel.recv(4096)
        if _HEADER.unpack_from(answer)[1] == _NLMSG_ERROR or len(answer) < _OWNER_AT + _OWNER.size:
            return None
        owner, inode = _OWNER.unpack_from(answer, _OWNER_AT)
        if inode:
            return owner  # type: ignore[no-any-return]
        if time.monotonic() >= until:
            return -1
        time.sleep(_PAUSE)


def _request(here: tuple, there: tuple) -> bytes:  # type: ignore[type-arg]
    """Return the kernel's question for the end whose own address is `there`, and whose other end is `here`."""
    (family, source), (_, destination) = _packed(there[0]), _packed(here[0])
    body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
    body += _ADDRESSES.pack(there[1], here[1], source, destination) + _ANY
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + body


def _packed(host: str) -> "tuple[int, bytes]":
    """Return the family and the bytes of an address; an IPv4 address in an IPv6 socket is one of IPv4 to the kernel."""
    host = host.partition("%")[0]
    if ":" not in host:
        return socket.AF_INET, socket.inet_pton(socket.AF_INET, host)
    packed = socket.inet_pton(socket.AF_INET6, host)
    if packed[:12] == b"\0" * 10 + b"\xff\xff":
        return socket.AF_INET, packed[12:]
    return socket.AF_INET6, packed
