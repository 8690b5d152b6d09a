"""Who happens before whom: clocks of warps, threads and units, releases and acquires; and how a race is told."""
