"""`paceline key`: a new API key, and what the gateway's file of keys has in its place."""

from paceline.cli.screen import Screen
from paceline.gateway.keyfile import new_key


def key() -> None:
    """Make an API key: the first line is for the client, the second for the file that PACELINE_KEYS_FILE names."""
    secret, hashed = new_key()
    screen = Screen()
    screen.line(f"key   {secret}")
    screen.line(f"hash  {hashed}")
