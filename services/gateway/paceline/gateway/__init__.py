import paceline.runtime.lean  # noqa: F401  # before anything else imports what it leaves out
