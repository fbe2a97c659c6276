"""What all rooms stand on: messages, checks of arguments, ranks, records, and torch's private names."""
