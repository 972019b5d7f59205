"""Exit codes: what a command says to scripts, in one table that `dordis --help` prints."""

DONE, FOUND, REFUSED, OVER_BUDGET, INTERRUPTED = 0, 1, 2, 3, 130

MEANINGS = {
    DONE: "done",
    FOUND: "found something: an attack that succeeds, a leak, a part of this machine that is missing",
    REFUSED: "refused, with one line on stderr",
    OVER_BUDGET: "more privacy was spent than the budget, or would have been",
    INTERRUPTED: "interrupted",
}


def table() -> str:
    """Write the codes and what they mean, for help."""
    return "Exit codes:\n\n\b\n" + "\n".join(f"{code:>5}  {meaning}" for code, meaning in MEANINGS.items())
