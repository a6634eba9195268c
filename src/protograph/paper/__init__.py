"""The paper's tables: the published numbers, the grid of runs, the ledger of what they measured, and what follows from it."""
