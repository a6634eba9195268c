"""Words of sentences that count something."""


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural where there are several."""
    return f"{count} {noun}" + ("" if count == 1 else "es" if noun.endswith("s") else "s")
