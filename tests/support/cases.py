"""A test of many values: one test that tries all of them and reports every value that it fails for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def cases(names: str, values: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Call a test once for every value, as one test.

    Use it instead of ``pytest.mark.parametrize`` where the values differ little: the fixtures of the test are set up once, and a failure names
    all values at fault.

    Args:
        names: Names of the arguments that come from the values, separated by commas.
        values: A tuple with a value of each name; with a single name, the value itself.

    Returns:
        A decorator of tests, async ones included. The test that it returns raises an ``ExceptionGroup`` with the failure of each value.
    """
    taken = [name.strip() for name in names.split(",")]
    table = [dict(zip(taken, value if len(taken) > 1 else (value,), strict=True)) for value in values]
    assert table, "a test of no values cannot fail"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def try_all(*args: Any, **fixtures: Any) -> None:  # noqa: ANN401 - the fixtures of the test
            failures: list[Exception] = []
            for case in table:
                try:
                    test(*args, **fixtures, **case)
                except Exception as error:  # noqa: BLE001 - all of them are reported
                    failures.append(_noted(error, case))
            _report(failures)

        @functools.wraps(test)
        async def try_all_async(*args: Any, **fixtures: Any) -> None:  # noqa: ANN401 - the fixtures of the test
            failures: list[Exception] = []
            for case in table:
                try:
                    await test(*args, **fixtures, **case)
                except Exception as error:  # noqa: BLE001 - all of them are reported
                    failures.append(_noted(error, case))
            _report(failures)

        def _report(failures: list[Exception]) -> None:
            if failures:
                raise ExceptionGroup(f"{test.__name__} fails for {len(failures)} of {len(table)} values", failures)

        made = try_all_async if inspect.iscoroutinefunction(test) else try_all
        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in taken]
        vars(made)["__signature__"] = signature.replace(parameters=left)
        return made

    return decorate


def _noted(error: Exception, case: dict[str, Any]) -> Exception:
    error.add_note(f"with {', '.join(f'{name}={value!r:.300}' for name, value in case.items())}")
    return error
