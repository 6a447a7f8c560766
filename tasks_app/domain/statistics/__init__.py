"""What is counted of tasks, and how: outcomes, and histograms of milliseconds."""
