"""What all rooms stand on: messages, checks of arguments, ranks, jobs, checkpoints, and torch's private names."""
