"""`python -m reports RUNS... -o OUT`: a report of run files."""

from pathlib import Path
from typing import Annotated

import typer

from reports.records import read_runs

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(no_args_is_help=True)
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run files, or folders with *.jsonl files.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the report.")],
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Write report.md and its figures alone.")
    ] = False,
) -> None:
    """Makes one page, tables and figures from run files.

    Writes report.html (in one file, to send or print), report.md, tables/*.csv and figures/*.png.
    The exit status is 0 if there is a report, also of failed runs, 1 if there was no run to
    report, and 2 after a mistake in the options.
    """
    records, problems = read_runs(runs)
    for problem in problems:
        typer.echo(f"reports: {problem.file}: {problem.message}", err=True)
    if not records:
        typer.echo("reports: no run in these files and folders; nothing to report", err=True)
        raise typer.Exit(1)
    from reports.page import write_report

    try:
        written = write_report(records, problems, out, markdown_only=markdown)
    except OSError as error:
        typer.echo(f"reports: cannot write to {out}: {error.strerror}", err=True)
        raise typer.Exit(1) from None
    count = "1 run" if len(records) == 1 else f"{len(records)} runs"
    page = out / ("report.md" if markdown else "report.html")
    typer.echo(f"{page} and {len(written) - 1} more files, from {count}")


if __name__ == "__main__":
    app(prog_name="python -m reports")
