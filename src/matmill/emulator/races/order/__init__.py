"""The happens-before order: clocks of warps, threads and units, releases and acquires; and the reports of races."""
