"""What a producer says of a task becomes a row: checked first."""
