"""Errors for packages that an adapter needs and that are not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str, package: str) -> Iterator[None]:
    """Explain a failed import of an adapter's package.

    Args:
        name: Extra of the distribution that installs the package.
        package: Top-level package that the adapter imports.

    Raises:
        ModuleNotFoundError: The package is missing; the message names the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package.partition(".")[0]:
            raise
        raise ModuleNotFoundError(f"This needs the package {package}. Run `pip install 'sandlot[{name}]'`.", name=error.name) from error
