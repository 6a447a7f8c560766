"""An order service with Litestar."""
