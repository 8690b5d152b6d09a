"""The schedule: which warps run next, what their lanes wait for, and how they end."""
