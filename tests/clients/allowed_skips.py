"""Why a case may be left out for a client: every other skip in this directory is a failure."""

NO_TOOLS = "aider offers the model no tools"
NO_LIMIT = "codex and cline send no limit on the length of an answer"
NO_RESUME = "cline resumes a session in its terminal interface only"


ALLOWED_SKIPS = frozenset({NO_TOOLS, NO_LIMIT, NO_RESUME})
