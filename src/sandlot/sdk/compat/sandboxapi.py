"""A client with the surface of SandboxAPI's documentation, for Sandlot's door ``/sandboxapi`` or whatever else speaks that API.

In a program that was written for it, the line that imports it changes::

    from sandlot.sdk.compat.sandboxapi import SandboxAPI

    sb = SandboxAPI(api_key=os.environ["SANDBOX_API_KEY"])
    session = sb.sessions.create(language="python3", idle_ttl=600)
    print(sb.sessions.execute(session.id, code="print(6 * 7)").stdout)
    sb.sessions.close(session.id)

Laws:
- Code that fails is a result: it raises nothing. What raises is a request that was refused, a session that there is not, or a service that is away.
- ``stdout`` and ``stderr`` are text, never None.
- One client may be used by many threads.
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
"""Of a Sandlot that runs on this machine as its guide says."""
KEY_VARIABLE, URL_VARIABLE = "SANDBOX_API_KEY", "SANDBOX_API_URL"

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 120.0
"""How much longer than the code itself an answer may take: a sandbox may have to be made for it, and to wait for room."""
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
    """A session: variables, imports, files and packages stay from call to call.

    Args:
        id: By which calls name it.
        language: What its code is in.
        status: ``active``.
        idle_ttl: Seconds of doing nothing after which it is closed.
        created_at: ISO 8601.
        expires_at: When it is closed if nothing more is done in it.
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
    """What code came to.

    Args:
        status: ``completed``, ``wrong_answer``, ``runtime_error``, ``timeout``; in a batch also ``error``, where it could not be run.
        stdout: What it wrote.
        stderr: The same; an exception's traceback is in it.
        exit_code: 0 where it went well.
        id: The run's.
        language: What it is in.
        exit_signal: The signal that ended it.
        compile_output: What a compiler said.
        execution_time_ms: Processor time.
        wall_time_ms: The time that passed.
        memory_used_kb: The most memory that it had; 0 where nobody knows.
        result: In a session: the value of the last expression, as text.
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
        """Whether it went well, and wrote what was expected."""
        return self.status == "completed"


@dataclass(frozen=True, slots=True)
class InstallResult:
    """What an installation came to.

    Args:
        status: ``completed`` or ``failed``.
        manager: Who installed.
        packages: What was asked for.
        stdout: What the manager wrote.
        stderr: The same.
        exit_code: Its.
    """

    status: str
    manager: str = ""
    packages: tuple[str, ...] = ()
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0

    @property
    def ok(self) -> bool:
        """Whether it went well."""
        return self.status == "completed"


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of many programs, in the order in which they were given.

    Args:
        results: Of each.
        total: How many there are.
        completed: How many ended with 0.
        failed: How many did not, or could not be run.
    """

    results: tuple[ExecuteResult, ...]
    total: int
    completed: int
    failed: int


class SandboxAPI:
    """A service that speaks SandboxAPI.

    Args:
        api_key: The key, by default ``SANDBOX_API_KEY``.
        base_url: What comes before ``/v1``, by default ``SANDBOX_API_URL``, and where that is unset a Sandlot on this machine.
        http_client: Connections of one's own; it stays open when this is closed.

    Raises:
        AuthenticationError: There is no key.
    """

    def __init__(self, api_key: str | None = None, base_url: str | None = None, *, http_client: httpx.Client | None = None) -> None:
        key = api_key or os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise AuthenticationError("There is no API key.", code=ErrorCode.UNAUTHENTICATED, hint=f"Pass api_key, or set {KEY_VARIABLE}.")
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
        """Close the connections. Sessions live on."""
        if self._owned:
            self._http.close()

    def execute(
        self, language: str, code: str, *, stdin: str | None = None, timeout: float | None = None, expected_output: str | None = None
    ) -> ExecuteResult:
        """Run a program once, in a sandbox of its own without network.

        Args:
            language: ``python3``, ``javascript`` or ``bash``.
            code: The program.
            stdin: All of its standard input.
            timeout: Seconds until it is killed, 10 by default, 300 at most.
            expected_output: What it is to write; where it writes something else, its status is ``wrong_answer``.

        Raises:
            SandlotError: It could not be run. A program that fails is a result.
        """
        body = _given(language=language, code=code, stdin=stdin, timeout=timeout, expected_output=expected_output)
        return _result(self.request("POST", "/v1/execute", body, timeout))

    def execute_with_expected(
        self, language: str, code: str, expected_output: str, *, stdin: str | None = None, timeout: float | None = None
    ) -> ExecuteResult:
        """Run a program once and compare what it writes: ``completed`` or ``wrong_answer``. White space at the ends of lines is no difference.

        Args:
            language: As for :meth:`execute`.
            code: The same.
            expected_output: What it is to write.
            stdin: All of its standard input.
            timeout: Seconds until it is killed.

        Raises:
            SandlotError: It could not be run.
        """
        return self.execute(language, code, stdin=stdin, timeout=timeout, expected_output=expected_output)

    def execute_batch(self, executions: Iterable[Mapping[str, Any]], *, concurrency: int = DEFAULT_CONCURRENCY) -> BatchResult:
        """Run programs, each in a sandbox of its own, a few at a time. One that cannot be run is a result of status ``error``, and spoils no other.

        Args:
            executions: The arguments of :meth:`execute` of each.
            concurrency: How many run at once.
        """
        asked = list(executions)
        with ThreadPoolExecutor(max_workers=max(1, concurrency), thread_name_prefix="sandboxapi") as threads:
            results = tuple(threads.map(self._attempt, asked))
        completed = sum(1 for each in results if each.exit_code == 0)
        return BatchResult(results, total=len(results), completed=completed, failed=len(results) - completed)

    def languages(self) -> list[dict[str, Any]]:
        """What code can be in: ``id``, ``name``, ``version``, ``aliases``, ``file_extension``, ``example``."""
        return list(self.request("GET", "/v1/languages")["languages"])

    def _attempt(self, asked: Mapping[str, Any]) -> ExecuteResult:
        try:
            return self.execute(**asked)
        except (SandlotError, TypeError) as error:
            return ExecuteResult("error", stderr=f"execution failed: {error}", exit_code=-1, language=str(asked.get("language", "")))

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = None) -> dict[str, Any]:
        """Make one call.

        Args:
            method: HTTP's.
            path: From ``/v1`` on.
            body: JSON.
            timeout_s: How long what is asked for may take.

        Returns:
            The answer's JSON object; empty for an empty answer.

        Raises:
            SandlotError: The service's, or UnavailableError where none answers.
        """
        read_s = ANSWER_TIMEOUT_S + (timeout_s or 0.0)
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
                f"{self.base_url} does not answer: {str(error) or type(error).__name__}.",
                code=ErrorCode.SERVICE_UNAVAILABLE,
                hint=f"Start the service, or say by base_url or {URL_VARIABLE} where it is.",
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
    """Sessions of a service.

    Args:
        api: It.
    """

    def __init__(self, api: SandboxAPI) -> None:
        self._api = api

    def create(self, language: str = "python3", idle_ttl: float | None = None) -> Session:
        """Open a session.

        Args:
            language: What its code is in.
            idle_ttl: Seconds of doing nothing after which it is closed, 600 by default.

        Raises:
            SandlotError: It could not be opened.
        """
        return _read(Session, self._api.request("POST", "/v1/sessions", _given(language=language, idle_ttl=idle_ttl)))

    def execute(self, session_id: str, code: str, *, timeout: float | None = None) -> ExecuteResult:
        """Run code in a session, where everything is that the code before it left.

        Args:
            session_id: Its id.
            code: The code.
            timeout: Seconds until it is interrupted, 60 by default, 300 at most.

        Raises:
            NotFoundError: There is no such session, or not any more.
            SandlotError: It could not be run. Code that fails is a result.
        """
        return _result(self._api.request("POST", f"{_path(session_id)}/execute", _given(code=code, timeout=timeout), timeout))

    def install(self, session_id: str, manager: str = "pip", packages: Sequence[str] = (), *, timeout: float | None = None) -> InstallResult:
        """Install packages in a session; its interpreter can import them at once.

        Args:
            session_id: Its id.
            manager: ``pip``, ``npm`` or ``apt``.
            packages: Names, with or without versions.
            timeout: Seconds until it is ended, 300 by default.

        Raises:
            NotFoundError: There is no such session, or not any more.
            SandlotError: It could not be begun. An install that fails is a result.
        """
        body = _given(manager=manager, packages=list(packages), timeout=timeout)
        told = self._api.request("POST", f"{_path(session_id)}/install", body, timeout or 300.0)
        return _read(InstallResult, {**told, "packages": tuple(told.get("packages", ()))})

    def close(self, session_id: str) -> None:
        """Close a session, and remove all that is in it.

        Raises:
            NotFoundError: There is no such session, or not any more.
        """
        self._api.request("DELETE", _path(session_id))

    def get(self, session_id: str) -> Session:
        """Look at a session.

        Raises:
            NotFoundError: There is no such session, or not any more.
        """
        return _read(Session, self._api.request("GET", _path(session_id)))

    def list(self) -> list[Session]:
        """All sessions of this key, oldest first."""
        return [_read(Session, each) for each in self._api.request("GET", "/v1/sessions")["sessions"]]


def _path(session_id: str) -> str:
    return f"/v1/sessions/{quote(session_id, safe='') or '%20'}"


def _given(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {name: value for name, value in fields.items() if value is not None}


def _result(told: Mapping[str, Any]) -> ExecuteResult:
    return _read(ExecuteResult, {**told, "stdout": told.get("stdout") or "", "stderr": told.get("stderr") or ""})


def _read(made: Callable[..., _Result], told: Mapping[str, Any]) -> _Result:
    """A value out of an answer's fields; those that a newer service has beside them are passed over."""
    names = getattr(made, "__dataclass_fields__")  # noqa: B009 - of a class that is known to be one
    return made(**{name: value for name, value in told.items() if name in names})


def _object(response: httpx.Response) -> dict[str, Any]:
    """An answer's JSON object; empty where it is none."""
    try:
        told = response.json()
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
