"""For tests of users: databases of their own, an empty pool, instants that are moved."""
