"""The rows of all sites of a step, merged, as readings on the host."""
