"""`paceline chat`: an answer in the terminal, or a conversation."""

import asyncio
import os
from contextlib import aclosing
from typing import Annotated

import typer
from rich.console import Console

from paceline.cli.completion import ChatError, ChatMessage, Figures, Server, first_model, stream

Url = Annotated[
    str | None, typer.Option("--url", envvar="PACELINE_URL", help="Where the gateway is, without /v1.")
]
Port = Annotated[int, typer.Option("--port", envvar="PACELINE_PORT", help="Of a gateway on this machine.")]
Model = Annotated[str | None, typer.Option("--model", help="Model id; by default the first that is served.")]
MaxTokens = Annotated[
    int, typer.Option("--max-tokens", min=1, help="Longest answer; Ctrl-C stops one before.")
]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, max=2.0, help="0 is greedy.")]
Question = Annotated[str | None, typer.Argument(help="Ask this and leave; without it, talk.")]

HELP = "/reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer."


class Conversation:
    """The messages so far, and how to continue them."""

    def __init__(self, console: Console, server: Server, model: str, options: dict[str, float]) -> None:
        self._console = console
        self._server = server
        self._model = model
        self._options = options
        self._messages: list[ChatMessage] = []

    def reset(self) -> None:
        """Forget everything that was said."""
        self._messages.clear()

    def ask(self, question: str) -> None:
        """Print the answer as it arrives. An answer that Ctrl-C stops is kept as far as it was seen; a question that
        failed is forgotten. Raises `ChatError`."""
        self._messages.append({"role": "user", "content": question})
        seen: list[str] = []
        figures = Figures()
        try:
            asyncio.run(self._answer(seen, figures))
        except KeyboardInterrupt:
            self._console.print("\n[dim]stopped[/dim]")
        except ChatError:
            self._messages.pop()
            raise
        self._messages.append({"role": "assistant", "content": "".join(seen)})

    async def _answer(self, seen: list[str], figures: Figures) -> None:
        pieces = stream(self._server, self._model, self._messages, figures, **self._options)
        async with aclosing(pieces):
            async for text in pieces:
                seen.append(text)
                self._console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
        self._console.print()
        # Not into a file that the answer is redirected to.
        cut = figures.completion_tokens >= self._options["max_tokens"]
        line = summary(figures) + (" · cut, see --max-tokens" if cut else "")
        Console(stderr=True).print(f"[dim]{line}[/dim]", highlight=False)


def summary(figures: Figures) -> str:
    """One line about the speed of an answer."""
    parts = [f"{figures.completion_tokens} tokens"]
    if (speed := figures.tokens_per_s) is not None:
        parts.append(f"{speed:.1f} tokens/s")
    if figures.ttft_s is not None:
        parts.append(f"first after {figures.ttft_s * 1000:.0f} ms")
    parts.append(f"{figures.cached_tokens} of {figures.prompt_tokens} prompt tokens cached")
    return " · ".join(parts)


def chat(
    question: Question = None,
    url: Url = None,
    port: Port = 8080,
    model: Model = None,
    max_tokens: MaxTokens = 2048,
    temperature: Temperature = 0.2,
) -> None:
    """Chat with the model in the terminal, or ask one question."""
    console = Console()
    server = Server((url or f"http://127.0.0.1:{port}").rstrip("/"), os.environ.get("PACELINE_API_KEY"))
    options: dict[str, float] = {"temperature": temperature, "max_tokens": max_tokens}
    try:
        conversation = Conversation(console, server, model or asyncio.run(first_model(server)), options)
        if question is None:
            _talk(console, conversation)
        else:
            conversation.ask(question)
    except ChatError as e:
        console.print(f"paceline chat: {e}", style="red", markup=False, highlight=False)
        raise typer.Exit(1) from e


def _talk(console: Console, conversation: Conversation) -> None:
    console.print(f"[dim]{HELP}[/dim]", highlight=False)
    while (line := _read_line(console)) is not None:
        if line == "/quit":
            return
        if line == "/reset":
            conversation.reset()
            console.print("[dim]forgotten[/dim]")
        elif line.startswith("/"):
            console.print(f"[dim]{HELP}[/dim]", highlight=False)
        elif line:
            _turn(console, conversation, line)


def _turn(console: Console, conversation: Conversation, question: str) -> None:
    try:
        conversation.ask(question)
    except ChatError as e:
        console.print(f"{e}", style="red", markup=False, highlight=False)


def _read_line(console: Console) -> str | None:
    """The next line, "" for one that Ctrl-C dropped, None at the end."""
    try:
        return console.input("[bold]> [/bold]").strip()
    except KeyboardInterrupt:
        console.print()
        return ""
    except EOFError:
        console.print()
        return None
