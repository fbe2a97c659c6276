"""What all rooms stand on: messages, checks of arguments, ranks, checkpoints, and torch's private names."""
