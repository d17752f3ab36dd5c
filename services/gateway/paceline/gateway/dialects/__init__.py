"""The APIs that the gateway speaks, a module each; `paceline.gateway.dialect` says what they have in common."""
