"""Why a task does not run, or what became of it: facts, and small rules over them."""
