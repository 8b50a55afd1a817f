"""``sandlot bench``: what things take, on this machine and through the SDK, each beside the nearest native thing."""
