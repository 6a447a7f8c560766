"""Three jobs of the kind that run at night."""
