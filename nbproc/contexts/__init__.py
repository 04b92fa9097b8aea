"""A run that has been started: its context, the thread that owns its processes, what it leaves."""
