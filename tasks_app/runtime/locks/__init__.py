"""Logical locks: who takes them, keeps them alive, and gives them back."""
