"""The host's end of the guest protocol: a multiplexed connection with typed calls, and the files of the guest as data."""
