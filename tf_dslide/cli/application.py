"""The Typer application `app`: all commands of `dslide`."""

from typing import Annotated

import typer

from tf_dslide.cli.errors import OneLineErrors
from tf_dslide.cli.evaluate import evaluate
from tf_dslide.cli.info import info
from tf_dslide.cli.predict import predict
from tf_dslide.cli.synth import synth
from tf_dslide.cli.train import train
from tf_dslide.cli.tune import tune

app = typer.Typer(
    name="dslide",
    cls=OneLineErrors,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train classifiers with 10,000 to 10,000,000 outputs on a CPU, and use them.",
)

for command in (train, evaluate, predict, tune, synth, info):
    app.command(no_args_is_help=command is not info)(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from tf_dslide._version import __version__

        typer.echo(f"dslide {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Holds the options that stand before a command."""
