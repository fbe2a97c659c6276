"""`compare`: the first layer in which two models differ by more than rounding, and why."""
