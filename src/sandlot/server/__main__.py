"""``python -m sandlot.server``: the service, without the rest of the CLI."""

from __future__ import annotations

import argparse
import gc
import sys


def main(argv: list[str] | None = None) -> int:
    """Run it; the exit code."""
    gc.disable()  # imports make next to no garbage, and looking for it takes an eighth of them; serving turns it on
    from sandlot.model.errors import SandlotError
    from sandlot.server import process
    from sandlot.server.settings import Settings

    parser = argparse.ArgumentParser(prog="python -m sandlot.server", description="The Sandlot service.")
    parser.add_argument("--local", action="store_true", help="the unix socket only; ends after ten minutes without a sandbox")
    parser.add_argument("--host", help="also listen on TCP there (keys are needed then)")
    parser.add_argument("--port", type=int, help="the port (8080)")
    asked = parser.parse_args(argv)
    try:
        settings = Settings.from_env(host=asked.host, port=asked.port)
    except SandlotError as error:
        print(f"sandlot: {error}", file=sys.stderr)
        return process.EXIT_SETTINGS
    return process.main(settings, local=asked.local)


if __name__ == "__main__":
    sys.exit(main())
