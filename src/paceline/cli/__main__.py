"""The `paceline` command."""

import typer

from paceline.cli.chat import chat
from paceline.cli.key import key
from paceline.cli.launch_command import launch
from paceline.cli.plan_command import plan
from paceline.cli.pull import pull
from paceline.cli.quantize import quantize
from paceline.cli.status import status
from paceline.cli.up import up
from paceline.telemetry import logs

app = typer.Typer(
    name="paceline",
    help="Serve large language models with prefill and decode on separate workers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (up, chat, launch, status, key, pull, quantize, plan):
    app.command()(command)


def main() -> None:
    # What goes wrong is told to people by the commands themselves.
    logs.configure("warning", "console")
    app()


if __name__ == "__main__":
    main()
