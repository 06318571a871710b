"""What the commands share: arguments, what they read, how they write and fail."""
