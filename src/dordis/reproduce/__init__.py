"""The experiments of the paper, its figures beside ours: what `dordis reproduce` shows, and no run needs."""
