"""Small versions of ``ss``, ``curl`` and ``pgrep`` for ready commands of templates, in images that lack these programs.

The first argument is the name of the program. The options are those that ready commands use, such as ``ss -Htuln sport = :8000``,
``curl -s -o /dev/null -w '%{http_code}' http://localhost:8000/`` and ``pgrep NAME``. All other options and filters are errors.
"""

from __future__ import annotations

import os
import re
import socket
import sys

from sandlot.protocol.schema import GUEST_PORTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TABLES = (("tcp", "/proc/net/tcp"), ("tcp", "/proc/net/tcp6"), ("udp", "/proc/net/udp"), ("udp", "/proc/net/udp6"))
"""Protocol and file of each table of sockets (proc_net(5))."""
STATES = {1: "ESTAB", 2: "SYN-SENT", 3: "SYN-RECV", 4: "FIN-WAIT-1", 5: "FIN-WAIT-2", 6: "TIME-WAIT", 7: "UNCONN", 8: "CLOSE-WAIT", 9: "LAST-ACK"}
STATES |= {10: "LISTEN", 11: "CLOSING"}
WAITING = ("LISTEN", "UNCONN")
"""States that the option ``-l`` selects."""

CURL_TIMEOUT_S = 30.0
MAX_HEAD_BYTES = 65_536
COMM_BYTES = 15
"""Longest name of a program in /proc/PID/comm (proc(5))."""


class UsageError(Exception):
    """The command line is not supported. The text is the reason."""


def ss(arguments: list[str]) -> int:
    """Print sockets, each on one line.

    Raises:
        UsageError: An option or a filter is not supported.
    """
    long = {"--tcp": "t", "--udp": "u", "--listening": "l", "--all": "a", "--no-header": "H", "--numeric": "n", "--ipv4": "4", "--ipv6": "6"}
    flags, filters = "", []
    for argument in arguments:
        if argument in long:
            flags += long[argument]
        elif argument.startswith("-") and len(argument) > 1:
            flags += argument[1:]
        else:
            filters += argument.split()
    if unknown := set(flags) - set("tulnaH46peoimr"):
        raise UsageError(f"the option -{min(unknown)} is not supported")
    accepts = _filter(filters)
    protocols = [name for name, flag in (("tcp", "t"), ("udp", "u")) if flag in flags] or ["tcp", "udp"]
    has_protocol = len(protocols) > 1
    if "H" not in flags:
        _print(*(("Netid",) if has_protocol else ()), "State", "Recv-Q", "Send-Q", "Local Address:Port", "Peer Address:Port")
    for protocol, path in TABLES:
        is_v6 = path.endswith("6")
        if protocol not in protocols or ("4" in flags and is_v6) or ("6" in flags and not is_v6):
            continue
        for state, local, peer in _sockets(path):
            if ("a" in flags or (state in WAITING) == ("l" in flags)) and accepts(state, local[1], peer[1]):
                _print(*((protocol,) if has_protocol else ()), state, "0", "0", _address(local), _address(peer))
    return 0


def _filter(words: list[str]) -> Callable[[str, int, int], bool]:
    """Return a function that decides about a socket by its state and ports. All conditions must hold."""
    conditions: list[tuple[str, bool, str | int]] = []
    left = [word for word in words if word != "and"]
    while left:
        name = left.pop(0)
        if name == "state" and left:
            conditions.append((name, True, {"listening": "LISTEN", "established": "ESTAB"}.get(left[0], left[0].upper())))
            del left[0]
        elif name in {"sport", "dport"} and len(left) > 1 and left[0] in {"=", "==", "eq", "!=", "ne"} and left[1].lstrip("*:").isdigit():
            conditions.append((name, left[0] not in {"!=", "ne"}, int(left[1].lstrip("*:"))))
            del left[:2]
        else:
            raise UsageError(f"the filter {' '.join(words)!r} is not supported")

    def accepts(state: str, sport: int, dport: int) -> bool:
        found = {"state": state, "sport": sport, "dport": dport}
        return all((found[name] == value) is is_equal for name, is_equal, value in conditions)

    return accepts


def _sockets(path: str) -> Iterator[tuple[str, tuple[str, int], tuple[str, int]]]:
    """Yield state, local and remote address of each socket of a table, except those on which the guest listens."""
    try:
        with open(path) as table:
            lines = table.read().splitlines()[1:]
    except OSError:  # a kernel without IPv6 has no table for IPv6
        return
    for line in lines:
        fields = line.split(None, 4)
        try:
            local, peer, state = _parse(fields[1]), _parse(fields[2]), STATES[int(fields[3], 16)]
        except (IndexError, KeyError, ValueError, OSError):
            continue
        if state not in WAITING or local[1] not in GUEST_PORTS:
            yield state, local, peer


def _parse(address: str) -> tuple[str, int]:
    """Return address and port of a field of a table: 32-bit words in the byte order of the machine."""
    digits, _, port = address.partition(":")
    words = [int(digits[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(digits), 8)]
    return socket.inet_ntop(socket.AF_INET6 if len(words) > 1 else socket.AF_INET, b"".join(words)), int(port, 16)


def _address(address: tuple[str, int]) -> str:
    host, port = address
    return f"{f'[{host}]' if ':' in host else host}:{port or '*'}"


def curl(arguments: list[str]) -> int:
    """Send a GET request over HTTP, and return the exit status that curl has for the result.

    Raises:
        UsageError: An option or the protocol of the URL is not supported.
    """
    urls, output, form, fails, timeout_s, left = [], "", "", False, CURL_TIMEOUT_S, list(arguments)
    while left:
        word = left.pop(0)
        flags = {"--silent": "-s", "--show-error": "-S", "--fail": "-f", "--output": "-o", "--write-out": "-w", "--max-time": "-m"}.get(word, word)
        if flags == "--connect-timeout":
            flags = "-m"
        if not flags.startswith("-") or flags == "-":
            urls.append(word)
            continue
        if unknown := set(flags[1:]) - set("sSfowmLk4"):
            raise UsageError(f"the option -{min(unknown)} is not supported")
        fails = fails or "f" in flags
        if flags[-1] in "owm":
            if not left:
                raise UsageError(f"the option {word} needs a value")
            value = left.pop(0)
            output, form = (value if flags[-1] == "o" else output), (value if flags[-1] == "w" else form)
            timeout_s = float(value) if flags[-1] == "m" else timeout_s
    parts = re.fullmatch(r"(?:http://)?(\[[0-9a-fA-F:.]+\]|[^/:?#]+)(?::(\d{1,5}))?(/[^?#]*)?(\?[^#]*)?(?:#.*)?", urls[0]) if len(urls) == 1 else None
    if parts is None:
        raise UsageError("exactly one URL with http:// is supported")
    host, port, path, query = parts.groups("")
    status, body = 0, b""
    try:
        status, body = _get(host, int(port or 80), (path or "/") + query, timeout_s)
    except (OSError, ValueError):
        pass
    if not fails or 0 < status < 400:  # noqa: PLR2004 - the first status of an error
        with open(output or 1, "wb", closefd=bool(output)) as file:
            file.write(body)
    sys.stdout.write(form.replace("%{http_code}", f"{status:03d}").replace("%{response_code}", f"{status:03d}").replace("\\n", "\n"))
    return 7 if not status else 22 if fails and status >= 400 else 0  # noqa: PLR2004 - the same


def _get(host: str, port: int, path: str, timeout_s: float) -> tuple[int, bytes]:
    """Return status and body of a response.

    Raises:
        OSError: The server cannot be reached.
        ValueError: The server does not speak HTTP.
    """
    with socket.create_connection((host.strip("[]"), port), timeout_s) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nUser-Agent: curl\r\nAccept: */*\r\n\r\n".encode())
        with connection.makefile("rb") as response:
            status = re.match(rb"HTTP/\d[.\d]* (\d{3})", response.readline(MAX_HEAD_BYTES))
            if status is None:
                raise ValueError(host)
            while response.readline(MAX_HEAD_BYTES).strip():
                pass
            return int(status[1]), response.read()


def pgrep(arguments: list[str]) -> int:
    """Print the ids of the processes whose program matches a regular expression. Return 1 if there is none.

    The processes that wait for the result are left out.

    Raises:
        UsageError: An option is not supported, or the expression is missing or invalid.
    """
    flags = "".join(argument[1:] for argument in arguments if argument.startswith("-"))
    patterns = [argument for argument in arguments if not argument.startswith("-")]
    if (unknown := set(flags) - set("fxi")) or len(patterns) != 1:
        raise UsageError(f"the option -{min(unknown)} is not supported" if unknown else "exactly one pattern is supported")
    try:
        pattern = re.compile(patterns[0], re.IGNORECASE if "i" in flags else 0)
    except re.error as error:
        raise UsageError(f"the pattern is invalid: {error}") from None
    matches = pattern.fullmatch if "x" in flags else pattern.search
    waiting, found = _ancestors(), False
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        if pid not in waiting and (name := _name(pid, is_full="f" in flags)) and matches(name):
            _print(str(pid))
            found = True
    return 0 if found else 1


def _ancestors() -> set[int]:
    """Return the ids of this process and of all processes above it."""
    found, pid = {1}, os.getpid()
    while pid not in found and pid:
        found.add(pid)
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:
                pid = int(stat.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found


def _name(pid: int, *, is_full: bool) -> str:
    """Return the name of the program of a process, or its command line; empty if the process has ended."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as comm, open(f"/proc/{pid}/cmdline", "rb") as cmdline:
            name, argv = os.fsdecode(comm.read().rstrip(b"\n")), os.fsdecode(cmdline.read()).split("\0")
    except OSError:
        return ""
    if is_full:
        return " ".join(argv).rstrip()
    full = argv[0].rpartition("/")[2]
    return full if len(os.fsencode(name)) == COMM_BYTES and full.startswith(name) else name


def _print(*fields: str) -> None:
    sys.stdout.write("\t".join(fields) + "\n")


PROGRAMS = {"ss": ss, "curl": curl, "pgrep": pgrep}


def main() -> None:
    """Run one of the programs."""
    name = sys.argv[1]
    try:
        sys.exit(PROGRAMS[name](sys.argv[2:]))
    except UsageError as error:
        sys.stderr.write(f"{name}: {error} by the {name} of Sandlot, which templates without {name} have for their ready commands\n")
        sys.exit(2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
