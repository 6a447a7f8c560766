"""What a database of yours can do: a short load on it, and a formula for what more hosts do."""
