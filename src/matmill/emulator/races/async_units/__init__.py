"""Races with asynchronous units and with the other blocks of a cluster."""
