"""The host's end of the guest protocol: one multiplexed connection with typed calls, and the guest shipped as data."""
