"""How model families write reasoning and tool calls: a parser for what they say, a grammar for what they must say."""
