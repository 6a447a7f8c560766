"""How statements are carried out, on any kind of connection."""
