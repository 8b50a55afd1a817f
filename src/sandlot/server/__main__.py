"""``python -m sandlot.server``: run the service without loading the CLI."""

from __future__ import annotations

import argparse
import gc
import sys


def main(argv: list[str] | None = None) -> int:
    """Run the service and return the exit code of the process."""
    gc.disable()  # imports create almost no garbage, and collections take an eighth of their time; process.main enables them again
    from sandlot.model.errors import SandlotError
    from sandlot.server import process
    from sandlot.server.settings import Settings

    parser = argparse.ArgumentParser(prog="python -m sandlot.server", description="The Sandlot service.")
    parser.add_argument("--local", action="store_true", help="listen on the unix socket only, and end after ten minutes without a sandbox")
    parser.add_argument("--host", help="also listen on TCP at this address; requests over TCP need a key")
    parser.add_argument("--port", type=int, help="TCP port (default: 8080)")
    options = parser.parse_args(argv)
    try:
        settings = Settings.load(host=options.host, port=options.port)
    except SandlotError as error:
        print(f"sandlot: {error}", file=sys.stderr)
        return process.EXIT_SETTINGS
    return process.main(settings, local=options.local)


if __name__ == "__main__":
    sys.exit(main())
