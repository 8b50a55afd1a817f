"""A service as a process: from settings to a listening socket, until it is stopped, idle or told to end.

Laws:
- What an earlier service left running is taken over; a request to it waits until it is. The rest of what it left is removed meanwhile.
- SIGTERM, SIGINT, SIGHUP, ``sandlot stop`` and idleness end it the same way: no new connections, running calls told so, exit code 0. Its
  sandboxes live on for the next start; so they do when it is killed, which a second signal does.
- While it runs it is in a control group of its own and the last that the kernel takes when memory is short (``host/service_cgroup.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import socket
from typing import cast

import structlog
import uvicorn
import uvloop

from sandlot import __version__
from sandlot.host.service_cgroup import service_cgroup
from sandlot.model.errors import ConflictError, InvalidRequestError, SandlotError
from sandlot.server import log_config
from sandlot.server.app import create_app
from sandlot.server.composition import RunningService, control_groups, open_service
from sandlot.server.settings import Settings
from sandlot.web import listener, websocket

EXIT_FAILED = 1
EXIT_SETTINGS = 2
EXIT_SECOND = 3
"""Another service has the data directory."""

KEEP_ALIVE_S = 75
"""Idle connections stay open that long; longer than the usual client keeps them, so that the client closes first."""

GRACEFUL_S = 10
"""For answers that are under way when the service ends."""

DESCRIPTORS = 65536
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LOG = "service.log"
"""In the data directory: where a local service's standard error goes."""

_IDLE_CHECK_S = 1.0
_log = structlog.get_logger("sandlot.server")


def main(settings: Settings, *, local: bool) -> int:
    """Serve until the end; the process's exit code.

    Args:
        settings: What the operator set.
        local: Listen on the unix socket only, and end after ``idle_exit_s`` without a sandbox.
    """
    gc.freeze()  # what was imported stays: no collection needs to look at it again
    gc.enable()
    log_config.configure(settings.log_level, settings.log_format)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Every sandbox and every client takes some; the usual 1,024 are there for programs that use select(2).
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS if most == resource.RLIM_INFINITY else min(DESCRIPTORS, most), most))
    try:
        uvloop.run(serve(settings, local=local))
    except ConflictError as error:
        _say(error)
        return EXIT_SECOND
    except InvalidRequestError as error:
        _say(error)
        return EXIT_SETTINGS
    except SandlotError as error:
        _say(error)
        return EXIT_FAILED
    return 0


async def serve(settings: Settings, *, local: bool) -> None:
    """Serve until the end.

    Raises:
        SandlotError: The service cannot start; says why.
    """
    # Read before it moves: what the service was started in is what its operator meant it to have.
    async with open_service(settings, keep=True) as service:
        with service_cgroup(control_groups(), service.node.id) as missing:
            for what in missing:
                _log.warning("unprotected", missing=what)
            await _listen(service, local=local)


async def _listen(service: RunningService, *, local: bool) -> None:
    settings = service.settings
    listeners = [listener.unix_socket(settings.socket)]
    try:
        if settings.host is not None and not local:
            listeners.append(listener.tcp_socket(settings.host, settings.port))
        _log.info("listening", socket=str(settings.socket), tcp=[_address(each) for each in listeners[1:]], version=__version__, node=service.node.id)
        await Server(service).until_stopped(listeners, idle_exit_s=settings.idle_exit_s if local else None)
    finally:
        settings.socket.unlink(missing_ok=True)
        for each in listeners:
            each.close()


@asynccontextmanager
async def answering(service: RunningService, listeners: list[socket]) -> AsyncIterator[None]:
    """Answer on some sockets inside of this process, for as long as the context is open. The sandboxes end with it.

    Args:
        service: What is served.
        listeners: Listening sockets; closed in the end.
    """
    server = Server(service)
    task = asyncio.create_task(server.until_stopped(listeners, signals=False))
    try:
        yield
    finally:
        service.stop.set()
        await task


class Server(uvicorn.Server):
    """uvicorn, with our own way to end.

    Args:
        service: What it serves.
    """

    def __init__(self, service: RunningService) -> None:
        asked, connections = service.settings.max_connections, allowed_connections(service.settings)
        if connections < asked:
            _log.warning("connections_bounded", asked=asked, given=connections, hint="Raise the hard limit of open files (ulimit -Hn).")
        config = uvicorn.Config(
            create_app(service),
            http=cast("type[asyncio.Protocol]", functools.partial(listener.SandlotHttpProtocol, max_connections=connections)),
            ws=websocket.SandlotWebSocketProtocol,
            ws_max_size=websocket.MESSAGE_MAX_BYTES,
            ws_ping_interval=websocket.PING_S,
            ws_ping_timeout=websocket.STALL_TIMEOUT_S,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # nobody is believed about where a request came from
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACEFUL_S,
        )
        super().__init__(config)
        self._service = service
        self._signals = 0

    async def until_stopped(self, listeners: list[socket], *, idle_exit_s: float | None = None, signals: bool = True) -> None:
        """Serve on these sockets until a request to stop, a signal, or idleness.

        Args:
            listeners: Listening sockets; closed in the end.
            idle_exit_s: Seconds without a sandbox until it ends by itself; None is never.
            signals: Whether those in ``ENDING`` end it.
        """
        loop = asyncio.get_running_loop()
        # Whoever started it with nohup(1) does not want to hear of SIGHUP.
        numbers = [number for number in ENDING if signals and signal.getsignal(number) is not signal.SIG_IGN]
        for number in numbers:
            loop.add_signal_handler(number, self._signalled, number)
        watcher = asyncio.create_task(self._watch(idle_exit_s))
        try:
            await self._serve(listeners)
        finally:
            watcher.cancel()
            for number in numbers:
                loop.remove_signal_handler(number)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """End: let the sandboxes go at once, so that no answer waits for one; meanwhile the connections."""
        _log.info("stopping", sandboxes=self._service.internals.registry.count)
        # No new client finds it; those that had, are told that it stops.
        self._service.settings.socket.unlink(missing_ok=True)
        self._service.events.close()  # whoever follows them would keep the connection for as long as it may
        closing = asyncio.create_task(self._service.internals.manager.aclose(keep=self._service.keep))
        await super().shutdown(sockets)
        await closing

    def _signalled(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals > 1:
            _log.warning("ended_at_once", signal=number.name, hint="The next start takes over what is left.")
            os._exit(128 + number)
        self._service.stop.set()

    async def _watch(self, idle_exit_s: float | None) -> None:
        """Turn a stop, or idleness, into uvicorn's flag."""
        stop = self._service.stop
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if idle_exit_s is None else _IDLE_CHECK_S):
                    await stop.wait()
            if idle_exit_s is not None:
                log_config.rotate_log(self._service.settings.data_dir / LOG)
            if idle_exit_s is not None and self._service.internals.registry.empty_s() >= idle_exit_s and not self.server_state.tasks:
                _log.info("idle", seconds=idle_exit_s)
                break
        self._service.internals.manager.refuse()
        self.should_exit = True


def allowed_connections(settings: Settings) -> int:
    """How many connections each kind may have, TCP and the unix socket.

    Half of all descriptors are for the sandboxes, whatever the operator asks for: each kind gets a quarter at the most.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return settings.max_connections if soft == resource.RLIM_INFINITY else min(settings.max_connections, max(1, soft // 4))


def _address(bound: socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _say(error: SandlotError) -> None:
    sys.stderr.write(f"sandlot: {error}\n")
