"""Process of a service: sockets, signals, exit codes and shutdown.

Invariants:
- The service adopts the sandboxes that an earlier service left. A request to such a sandbox waits until the sandbox is adopted.
- SIGTERM, SIGINT, SIGHUP, ``sandlot service stop`` and the idle timeout end the service in the same way: it accepts no new connections, running calls
  get an error, and the exit code is 0. The sandboxes keep running for the next service, also after a second signal, which ends the process at once.
- A running service has its own control group and is the last process that the kernel kills when memory runs out (``host/service_cgroup.py``).
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
from starlette.types import ASGIApp, Receive, Scope, Send

from sandlot import __version__
from sandlot.agents.service.models import Models, load_models
from sandlot.agents.service.runtime import AgentRuntime
from sandlot.agents.service.tool_servers import load_tool_servers
from sandlot.builds.limits import BuildLimits
from sandlot.builds.runtime import BuildRuntime
from sandlot.core.ports import SystemClock
from sandlot.host.cpu_latency import CpuLatency
from sandlot.host.service_cgroup import service_cgroup
from sandlot.model.errors import ConflictError, InvalidRequestError, SandlotError
from sandlot.server import data_dir, log_config
from sandlot.server.app import create_app
from sandlot.server.composition import RunningService, control_groups, open_service
from sandlot.server.preview.listener import PreviewListener
from sandlot.server.settings import Settings
from sandlot.server.vendors import VENDORS
from sandlot.web import listener, websocket
from sandlot.web.connections import ConnectionShares
from sandlot.web.request_turns import RequestTurns
from sandlot.web.slices import SliceTurns

EXIT_FAILED = 1
EXIT_SETTINGS = 2
EXIT_LOCKED = 3
"""Exit code if another service uses the data directory. The SDK waits for the other service then."""

KEEP_ALIVE_S = 75
"""Seconds for which idle connections stay open. Most clients close theirs earlier, so that no request meets a closing connection."""

ACCEPTS_PER_TURN = 4
"""Connections that are accepted in one turn of the event loop: a burst of connections does not hold up requests."""

GRACEFUL_S = 10
"""Seconds for responses in progress when the service ends."""

DESCRIPTORS = 65536
SWITCH_INTERVAL_S = 0.0005
"""Time for which a thread waits for the interpreter's lock (GIL) until the thread that holds it must release it.

A request to the database needs the lock dozens of times. With Python's 5 ms it takes a second while the event loop is busy (measured).
"""
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_IDLE_CHECK_S = 1.0
_TICK_S = 1.0
"""Seconds between changes of the Date header."""
_log = structlog.get_logger("sandlot.server")


def main(settings: Settings, *, local: bool) -> int:
    """Run the service until it ends, and return the exit code of the process.

    Args:
        settings: Settings of the operator.
        local: Listen on the unix socket only, and end after ``idle_exit_s`` without a sandbox.
    """
    gc.freeze()  # imported objects stay: collections need not visit them
    gc.enable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    log_config.configure(settings.log_level, settings.log_format)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Every sandbox and every client needs descriptors. The usual soft limit of 1,024 protects programs that use select(2).
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS if most == resource.RLIM_INFINITY else min(DESCRIPTORS, most), most))
    try:
        uvloop.run(serve(settings, local=local))
    except ConflictError as error:
        _print_error(error)
        return EXIT_LOCKED
    except InvalidRequestError as error:
        _print_error(error)
        return EXIT_SETTINGS
    except SandlotError as error:
        _print_error(error)
        return EXIT_FAILED
    return 0


async def serve(settings: Settings, *, local: bool) -> None:
    """Run the service until it ends.

    Raises:
        SandlotError: The service cannot start.
    """
    # open_service reads the limits of the control group in which the operator started the process. service_cgroup leaves this group.
    async with open_service(settings, keep=True) as service:
        with service_cgroup(control_groups(), service.node.id) as missing:
            for protection in missing:
                _log.warning("service.unprotected", missing=protection, hint="Run the service as root, with CAP_SYS_RESOURCE.")
            await _listen(service, local=local)


async def _listen(service: RunningService, *, local: bool) -> None:
    settings = service.settings
    listeners = [listener.unix_socket(settings.socket)]
    try:
        if settings.host is not None and not local:
            listeners.append(listener.tcp_socket(settings.host, settings.port))
        gc.freeze()  # also what the service has opened
        _log.info("listening", socket=str(settings.socket), tcp=[_address(each) for each in listeners[1:]], version=__version__, node=service.node.id)
        await Server(service, local=local).until_stopped(listeners, idle_exit_s=settings.idle_exit_s if local else None)
    finally:
        settings.socket.unlink(missing_ok=True)
        for each in listeners:
            each.close()


def _keep_awake(app: ASGIApp) -> ASGIApp:
    """Return an app that keeps the processors awake when a request begins and ends."""
    latency = CpuLatency()

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        latency.hold()
        try:
            await app(scope, receive, send)
        finally:
            latency.hold()

    return serve


@asynccontextmanager
async def serve_in_background(service: RunningService, listeners: list[socket]) -> AsyncIterator[None]:
    """Serve on listening sockets from the beginning of the context, once the service has started, to its end. Then close the sockets."""
    server = Server(service)
    task = asyncio.create_task(server.until_stopped(listeners, signals=False))
    waiting = asyncio.create_task(server.has_started.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        waiting.cancel()
        service.stop.set()
        await task


class Server(uvicorn.Server):
    """uvicorn's server with the shutdown of a service.

    Args:
        service: The service.
        local: The service listens on the unix socket only.
    """

    def __init__(self, service: RunningService, *, local: bool = False) -> None:
        wanted, connections = service.settings.max_connections, allowed_connections(service.settings)
        if connections < wanted:
            _log.warning("connections_limited", configured=wanted, allowed=connections, hint="Raise the hard limit of open files (ulimit -Hn).")
        now_s = asyncio.get_running_loop().time
        self.connections = ConnectionShares(connections, now_s, trusted_proxies=service.settings.trusted_proxies)
        """Connections on TCP, with the share of each address and key."""
        local_connections = ConnectionShares(connections, now_s, shared=False)
        self.has_started = asyncio.Event()
        slices, turns = SliceTurns(), RequestTurns()
        self.previews = PreviewListener(service.settings, service.node, VENDORS, turns, max_connections=connections, local=local)
        http = functools.partial(listener.SandlotHttpProtocol, tcp=self.connections, local=local_connections, turns=slices)
        ws = functools.partial(websocket.SandlotWebSocketProtocol, turns=slices)
        settings = service.settings
        models = Models({} if settings.agent_models is None else load_models(settings.agent_models))
        servers = {} if settings.agent_mcp_servers is None else load_tool_servers(settings.agent_mcp_servers)
        self.agents = AgentRuntime(service.node, models, settings.agent_limits, self.previews, servers)
        self.builds = BuildRuntime(
            service.node, service.bases, service.build_results, service.layers, service.uploads, settings.builds, BuildLimits(), SystemClock()
        )
        app: ASGIApp = create_app(service, turns, self.previews, self.agents, self.builds)
        self.previews.app = app
        if service.settings.low_latency == "on":
            app = _keep_awake(app)
        config = uvicorn.Config(
            app,
            http=cast("type[asyncio.Protocol]", http),
            ws=cast("type[asyncio.Protocol]", ws),
            ws_max_size=websocket.MESSAGE_MAX_BYTES,
            ws_ping_interval=websocket.PING_S,
            ws_ping_timeout=websocket.STALL_TIMEOUT_S,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # `web/connections.py` reads them, for connections of trusted proxies only
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=ACCEPTS_PER_TURN,  # asyncio accepts so many connections at once
            timeout_graceful_shutdown=GRACEFUL_S,
        )
        super().__init__(config)
        self._service = service
        self._signals = 0
        self._exiting = asyncio.Event()

    async def until_stopped(self, listeners: list[socket], *, idle_exit_s: float | None = None, signals: bool = True) -> None:
        """Serve until a stop request, a signal, or the idle timeout.

        Args:
            listeners: Listening sockets, which are closed at the end.
            idle_exit_s: Seconds without a sandbox after which the service ends, unless a request or a run of an agent is in progress. None: never.
            signals: Install handlers for ``ENDING_SIGNALS``.
        """
        loop = asyncio.get_running_loop()
        # nohup(1) makes SIGHUP ignored.
        numbers = [number for number in ENDING_SIGNALS if signals and signal.getsignal(number) is not signal.SIG_IGN]
        for number in numbers:
            loop.add_signal_handler(number, self._signalled, number)
        watcher = asyncio.create_task(self._watch(idle_exit_s))
        try:
            await self._serve(listeners)
        finally:
            watcher.cancel()
            for number in numbers:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Start to serve on listening sockets."""
        await self.previews.open()
        await self.agents.start()
        await self.builds.open()
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(listener.BACKLOG)  # asyncio has limited it to the number of connections that it accepts at once
        self.has_started.set()

    async def main_loop(self) -> None:
        """Serve until the exit. uvicorn's own loop asks ten times per second whether to exit."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._exiting.wait()

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Close the sandbox manager and the connections at the same time, so that no response waits for a sandbox."""
        _log.info("stopping", sandboxes=self._service.internals.registry.count)
        # New clients no longer find the service; connected ones get an error.
        self._service.settings.socket.unlink(missing_ok=True)
        self._service.events.close()  # followers would keep their connections open until the timeout
        self._service.node.agents.close()
        self._service.node.template_builds.close()
        self._service.images.stop.set()  # builds would wait for it
        await self.agents.aclose()
        await self.builds.aclose()
        closing_previews = asyncio.create_task(self.previews.aclose())
        closing = asyncio.create_task(self._service.internals.manager.aclose(keep=self._service.keep))
        await super().shutdown(sockets)
        await closing
        await asyncio.wait({closing_previews}, timeout=GRACEFUL_S)

    def _signalled(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals > 1:
            _log.warning(
                "service.exited_without_shutdown", signal=number.name, hint="Start the service again; it adopts the sandboxes that are left."
            )
            os._exit(128 + number)
        self._service.stop.set()

    async def _watch(self, idle_exit_s: float | None) -> None:
        """Wait for a stop request or the idle timeout, then make uvicorn exit."""
        stop = self._service.stop
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if idle_exit_s is None else _IDLE_CHECK_S):
                    await stop.wait()
            if idle_exit_s is not None:
                log_config.rotate_log(self._service.settings.data_dir / data_dir.LOG)
            is_idle = not self.server_state.tasks and not self.agents.is_running
            if idle_exit_s is not None and is_idle and self._service.internals.registry.empty_s() >= idle_exit_s:
                _log.info("service.idle_exit", idle_s=idle_exit_s)
                break
        self._service.internals.manager.refuse()
        self.should_exit = True
        self._exiting.set()


def allowed_connections(settings: Settings) -> int:
    """Return the maximum number of connections over TCP, which is also that over the unix socket.

    Each may use a quarter of the process's descriptors at most, because half of them are reserved for sandboxes.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return settings.max_connections if soft == resource.RLIM_INFINITY else min(settings.max_connections, max(1, soft // 4))


def _address(bound: socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _print_error(error: SandlotError) -> None:
    sys.stderr.write(f"sandlot: {error}\n")
