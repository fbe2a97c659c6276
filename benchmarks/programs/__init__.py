"""Published faulty programs, ported to torch: what `HealthMonitor` says of faults that others made."""
