"""Test of the test: break the product in one small place, and see which test says so."""
