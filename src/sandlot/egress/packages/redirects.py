"""Redirects of registries to storage hosts, which the registry chooses and this machine does not know.

Invariant: a request after a redirect goes only to an address that was checked: a public one, or one in the networks that the operator allows
(``SANDLOT_NETWORK_PRIVATE``). If this machine reaches the host through a proxy and cannot look up its name, the proxy decides.
"""

from __future__ import annotations

import urllib.request
from urllib.parse import urlsplit

from sandlot.egress.outbound.connector import ConnectionFailedError, Connector
from sandlot.egress.packages.config.values import redacted
from sandlot.egress.packages.upstream import RefusedRedirectError, UpstreamError
from sandlot.egress.policy.destinations import parse_host
from sandlot.model.network_activity import RefusalReason

_CONSUMER = "image registries"


class CheckedRedirects:
    """Implements :class:`~sandlot.egress.packages.upstream.RedirectGuard` with the address checks of sandboxes.

    Args:
        connector: Resolves the hosts and checks their addresses. The caller closes it.
    """

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    async def address(self, url: str) -> str | None:
        """Return the address that the request must go to. None: a proxy connects.

        Raises:
            RefusedRedirectError: The host has no address that requests may go to.
            UpstreamError: The host cannot be looked up.
        """
        is_proxied = _is_proxied(url)
        try:
            host = parse_host(urlsplit(url).hostname or "")
            addresses = await self._connector.resolve(host, _CONSUMER)
        except ConnectionFailedError as error:
            if is_proxied and error.reason is not RefusalReason.ADDRESS_NOT_PUBLIC:
                return None
            if error.reason is RefusalReason.ADDRESS_NOT_PUBLIC:
                reason = "it redirects to an address that is not public"
                raise RefusedRedirectError(f"{redacted(url)}: {reason}", reason) from None
            reason = "the host that it redirects to cannot be looked up"
            raise UpstreamError(f"{redacted(url)}: {reason}", reason) from None
        except ValueError:
            raise RefusedRedirectError(f"{redacted(url)}: the host is invalid", "it redirects to an invalid URL") from None
        return None if is_proxied else str(addresses[0])


def _is_proxied(url: str) -> bool:
    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    has_proxy = bool(proxies.get(parts.scheme) or proxies.get("all"))
    return has_proxy and not urllib.request.proxy_bypass(parts.netloc)
