"""What a batch job is: its policies, its records, and what follows from them. Pure."""
