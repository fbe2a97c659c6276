"""What `hookboard.compare` says of copies of models, and of mistakes in them, beside two other ways to find one."""
