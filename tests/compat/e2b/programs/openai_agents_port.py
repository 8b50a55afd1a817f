"""A sandbox of openai-agents with an exposed port, which a server inside listens on. Prints what it saw as JSON."""

import asyncio
import json
import ssl
import urllib.error
import urllib.request

from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions

PORT = 3000


def get(url):
    """Return the response of the server, once it listens."""
    while True:
        try:
            return urllib.request.urlopen(url, context=ssl.create_default_context(), timeout=60).read().decode()  # noqa: S310 - the address of the port
        except urllib.error.HTTPError as error:
            if error.code != 502:
                raise


async def main():
    client = E2BSandboxClient()
    session = await client.create(options=E2BSandboxClientOptions(sandbox_type="e2b", timeout=120, exposed_ports=(PORT,)))
    async with session:
        await session.exec("mkdir /tmp/page && echo hello > /tmp/page/note.txt", shell=True)
        await session.exec(f"nohup python3 -m http.server --directory /tmp/page {PORT} >/dev/null 2>&1 &", shell=True)
        endpoint = await session.resolve_exposed_port(PORT)
        seen = {"tls": endpoint.tls, "page": await asyncio.to_thread(get, endpoint.url_for("http") + "note.txt")}
    await client.delete(session)
    print(json.dumps(seen))


asyncio.run(main())
