"""What the front door calls: producers, operators, groups, bulk work."""
