"""Real projects of others that train by themselves: what `HealthMonitor` says of them, healthy and with a fault."""
