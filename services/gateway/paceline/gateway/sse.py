"""Server-sent events that do not depend on what is sent."""

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
