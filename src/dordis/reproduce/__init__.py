"""The experiments of the paper, its figures beside ours: what `dordis reproduce` shows, and what nothing else imports."""
