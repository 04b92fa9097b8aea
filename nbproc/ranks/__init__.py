"""The processes of a run: made, given their job, ended."""
