"""A client with the surface of SandboxAPI's documentation, for Sandlot's compatibility API ``/sandboxapi`` or another service with this API.

A program that was written for SandboxAPI changes its import::

    from sandlot.sdk.compat.sandboxapi import SandboxAPI

    sb = SandboxAPI(api_key=os.environ["SANDBOX_API_KEY"])
    session = sb.sessions.create(language="python3", idle_ttl=600)
    print(sb.sessions.execute(session.id, code="print(6 * 7)").stdout)
    sb.sessions.close(session.id)

Invariants:
- Code that fails is a result. Errors are raised for refused requests, missing sessions and services that cannot be reached.
- ``stdout`` and ``stderr`` are text, never None.
- Threads may share a client.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx

from sandlot import __version__
from sandlot.model.errors import AuthenticationError, ErrorCode, InvalidRequestError, SandlotError, UnavailableError, from_code

DEFAULT_URL = "http://127.0.0.1:8080/sandboxapi"
"""Address of a Sandlot service on this machine, as in the guide."""
KEY_VARIABLE, URL_VARIABLE = "SANDBOX_API_KEY", "SANDBOX_API_URL"

CONNECT_TIMEOUT_S = 10.0
RESPONSE_TIMEOUT_S = 120.0
"""Seconds that a response may take beyond the timeout of the code: the sandbox may have to be created, or to wait for capacity."""
DEFAULT_CONCURRENCY = 4

_Result = TypeVar("_Result")

_CODES: Mapping[int, ErrorCode] = {
    400: ErrorCode.INVALID_REQUEST,
    401: ErrorCode.UNAUTHENTICATED,
    403: ErrorCode.FORBIDDEN,
    404: ErrorCode.NOT_FOUND,
    408: ErrorCode.TIMEOUT,
    409: ErrorCode.CONFLICT,
    413: ErrorCode.TOO_LARGE,
    429: ErrorCode.QUOTA_EXCEEDED,
    501: ErrorCode.UNSUPPORTED,
    503: ErrorCode.BUSY,
    507: ErrorCode.DISK_FULL,
}


@dataclass(frozen=True, slots=True)
class Session:
    """A session, in which variables, imports, files and packages persist between calls.

    Args:
        id: Id of the session.
        language: Language of the code.
        status: ``active``.
        idle_ttl: Seconds without activity after which the session is closed.
        created_at: Time of creation in ISO 8601.
        expires_at: Time at which the session is closed if there is no more activity.
    """

    id: str
    language: str = ""
    status: str = "active"
    idle_ttl: int | None = None
    created_at: str = ""
    expires_at: str = ""

    @property
    def session_id(self) -> str:
        """The same as ``id``."""
        return self.id


@dataclass(frozen=True, slots=True)
class ExecuteResult:
    """Result of a run of code.

    Args:
        status: ``completed``, ``wrong_answer``, ``compile_error``, ``runtime_error``, ``timeout``; in a batch also ``error`` for code that could
            not be run.
        stdout: Standard output.
        stderr: Standard error, with the traceback of an exception.
        exit_code: Exit code; 0 for success.
        id: Id of the run.
        language: Language of the code.
        exit_signal: Signal that ended the code.
        compile_output: Output of a compiler.
        execution_time_ms: CPU time.
        wall_time_ms: Elapsed time.
        memory_used_kb: Peak memory; 0 if unknown.
        result: Value of the last expression as text; only in a session.
    """

    status: str
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    id: str = ""
    language: str = ""
    exit_signal: str | None = None
    compile_output: str = ""
    execution_time_ms: int = 0
    wall_time_ms: int = 0
    memory_used_kb: int = 0
    result: str | None = None

    @property
    def ok(self) -> bool:
        """True if the code succeeded and wrote the expected output."""
        return self.status == "completed"


@dataclass(frozen=True, slots=True)
class InstallResult:
    """Result of an installation.

    Args:
        status: ``completed`` or ``failed``.
        manager: Package manager.
        packages: Requested packages.
        stdout: Standard output of the package manager.
        stderr: Standard error of the package manager.
        exit_code: Exit code of the package manager.
    """

    status: str
    manager: str = ""
    packages: tuple[str, ...] = ()
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0

    @property
    def ok(self) -> bool:
        """True if the installation succeeded."""
        return self.status == "completed"


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Results of several programs, in their order.

    Args:
        results: Result of each program.
        total: Number of programs.
        completed: Number of programs with exit code 0.
        failed: Number of other programs.
    """

    results: tuple[ExecuteResult, ...]
    total: int
    completed: int
    failed: int


class SandboxAPI:
    """A service with SandboxAPI's API.

    Args:
        api_key: API key. Default: ``SANDBOX_API_KEY``.
        base_url: URL in front of ``/v1``. Default: ``SANDBOX_API_URL``, or a Sandlot service on this machine.
        http_client: Client whose connections are used; :meth:`close` leaves it open.

    Raises:
        AuthenticationError: No API key is given or set.
    """

    def __init__(self, api_key: str | None = None, base_url: str | None = None, *, http_client: httpx.Client | None = None) -> None:
        key = api_key or os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise AuthenticationError("No API key is set.", code=ErrorCode.UNAUTHENTICATED, hint=f"Pass `api_key`, or set {KEY_VARIABLE}.")
        self.base_url = (base_url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")
        self._owned = http_client is None
        self._http = httpx.Client() if http_client is None else http_client
        self._headers = {"Authorization": f"Bearer {key}", "User-Agent": f"sandlot-python/{__version__}"}
        self.sessions = Sessions(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Sessions stay open."""
        if self._owned:
            self._http.close()

    def execute(
        self, language: str, code: str, *, stdin: str | None = None, timeout: float | None = None, expected_output: str | None = None
    ) -> ExecuteResult:
        """Run a program once in a new sandbox without network. A program that fails is a result.

        Args:
            language: ``python3``, ``javascript``, ``typescript``, ``bash``, ``java``, ``cpp``, ``c``, ``go``, or another one of :meth:`languages`.
            code: Text of the program.
            stdin: Standard input.
            timeout: Seconds until the program is killed, at most 300. Default: 10.
            expected_output: Expected standard output; the status is ``wrong_answer`` if it differs.
        """
        body = _given(language=language, code=code, stdin=stdin, timeout=timeout, expected_output=expected_output)
        return _result(self.request("POST", "/v1/execute", body, timeout))

    def execute_with_expected(
        self, language: str, code: str, expected_output: str, *, stdin: str | None = None, timeout: float | None = None
    ) -> ExecuteResult:
        """Run a program once and compare its output: ``completed`` or ``wrong_answer``. White space at the ends of lines is ignored.

        Args:
            language: As for :meth:`execute`.
            code: As for :meth:`execute`.
            expected_output: As for :meth:`execute`.
            stdin: As for :meth:`execute`.
            timeout: As for :meth:`execute`.
        """
        return self.execute(language, code, stdin=stdin, timeout=timeout, expected_output=expected_output)

    def execute_batch(self, executions: Iterable[Mapping[str, Any]], *, concurrency: int = DEFAULT_CONCURRENCY) -> BatchResult:
        """Run programs side by side, each in a new sandbox. A program that cannot be run has the status ``error`` and does not affect the others.

        Args:
            executions: Arguments of :meth:`execute` for each program.
            concurrency: Number of programs that run at the same time.
        """
        asked = list(executions)
        with ThreadPoolExecutor(max_workers=max(1, concurrency), thread_name_prefix="sandboxapi") as threads:
            results = tuple(threads.map(self._attempt, asked))
        completed = sum(1 for each in results if each.exit_code == 0)
        return BatchResult(results, total=len(results), completed=completed, failed=len(results) - completed)

    def languages(self) -> list[dict[str, Any]]:
        """List languages with ``id``, ``name``, ``version``, ``aliases``, ``file_extension`` and ``example``."""
        return list(self.request("GET", "/v1/languages")["languages"])

    def _attempt(self, asked: Mapping[str, Any]) -> ExecuteResult:
        try:
            return self.execute(**asked)
        except (SandlotError, TypeError) as error:
            return ExecuteResult("error", stderr=f"execution failed: {error}", exit_code=-1, language=str(asked.get("language", "")))

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = None) -> dict[str, Any]:
        """Send a request and return the JSON object of the response, which is empty for an empty response.

        Args:
            method: HTTP method.
            path: Path from ``/v1`` on.
            body: JSON body.
            timeout_s: Timeout of the code that the request runs.

        Raises:
            SandlotError: The service refused the request.
            UnavailableError: The service cannot be reached.
        """
        read_s = RESPONSE_TIMEOUT_S + (timeout_s or 0.0)
        try:
            response = self._http.request(
                method,
                self.base_url + path,
                json=body,
                headers=self._headers,
                timeout=httpx.Timeout(read_s, connect=CONNECT_TIMEOUT_S),
            )
        except httpx.HTTPError as error:
            raise UnavailableError(
                f"Cannot connect to {self.base_url}: {str(error) or type(error).__name__}.",
                code=ErrorCode.SERVICE_UNAVAILABLE,
                hint=f"Start the service, or correct `base_url` or {URL_VARIABLE}.",
            ) from error
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(f"The request cannot be sent as JSON: {error}.") from error
        if response.is_success:
            return _object(response)
        told = _object(response)
        message = str(told.get("message") or told.get("error") or f"The service answered {response.status_code}.")
        code = _CODES.get(response.status_code, ErrorCode.INTERNAL)
        raise from_code(code, message, fields={"status": response.status_code, "error": told.get("error"), "request_id": told.get("request_id")})


class Sessions:
    """Sessions of a service, as ``sb.sessions``."""

    def __init__(self, api: SandboxAPI) -> None:
        self._api = api

    def create(self, language: str = "python3", idle_ttl: float | None = None) -> Session:
        """Open a session.

        Args:
            language: Language of the code.
            idle_ttl: Seconds without activity after which the session is closed. Default: 600.
        """
        return _read(Session, self._api.request("POST", "/v1/sessions", _given(language=language, idle_ttl=idle_ttl)))

    def execute(self, session_id: str, code: str, *, timeout: float | None = None) -> ExecuteResult:
        """Run code in a session, in which variables of earlier code persist. Code that fails is a result.

        Args:
            session_id: Id of the session.
            code: Code to run.
            timeout: Seconds until the code is interrupted, at most 300. Default: 60.

        Raises:
            NotFoundError: The session does not exist or is closed.
        """
        return _result(self._api.request("POST", f"{_path(session_id)}/execute", _given(code=code, timeout=timeout), timeout))

    def install(self, session_id: str, manager: str = "pip", packages: Sequence[str] = (), *, timeout: float | None = None) -> InstallResult:
        """Install packages in a session; its interpreter can import them at once. An installation that fails is a result.

        Args:
            session_id: Id of the session.
            manager: ``pip``, ``npm`` or ``apt``.
            packages: Names, with or without versions.
            timeout: Seconds until the installation is killed. Default: 300.

        Raises:
            NotFoundError: The session does not exist or is closed.
        """
        body = _given(manager=manager, packages=list(packages), timeout=timeout)
        told = self._api.request("POST", f"{_path(session_id)}/install", body, timeout or 300.0)
        return _read(InstallResult, {**told, "packages": tuple(told.get("packages", ()))})

    def close(self, session_id: str) -> None:
        """Close a session and delete everything in it.

        Raises:
            NotFoundError: The session does not exist or is closed.
        """
        self._api.request("DELETE", _path(session_id))

    def get(self, session_id: str) -> Session:
        """Get a session.

        Raises:
            NotFoundError: The session does not exist or is closed.
        """
        return _read(Session, self._api.request("GET", _path(session_id)))

    def list(self) -> list[Session]:
        """List the sessions of the API key, oldest first."""
        return [_read(Session, each) for each in self._api.request("GET", "/v1/sessions")["sessions"]]


def _path(session_id: str) -> str:
    return f"/v1/sessions/{quote(session_id, safe='') or '%20'}"


def _given(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {name: value for name, value in fields.items() if value is not None}


def _result(told: Mapping[str, Any]) -> ExecuteResult:
    return _read(ExecuteResult, {**told, "stdout": told.get("stdout") or "", "stderr": told.get("stderr") or ""})


def _read(made: Callable[..., _Result], told: Mapping[str, Any]) -> _Result:
    """Return a value with the fields of a response; fields of a newer service are ignored."""
    names = getattr(made, "__dataclass_fields__")  # noqa: B009 - the class is a dataclass
    return made(**{name: value for name, value in told.items() if name in names})


def _object(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of a response; empty if the response has none."""
    try:
        told = response.json()
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
