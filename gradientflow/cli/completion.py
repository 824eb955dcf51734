"""``gradientflow completion``: print the script by which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_PROGRAM = "gradientflow"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    For bash: eval "$(gradientflow completion bash)" in ~/.bashrc; likewise for zsh in ~/.zshrc. For fish: gradientflow
    completion fish > ~/.config/fish/completions/gradientflow.fish.
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(click.get_current_context().find_root().command, {}, _PROGRAM, "_GRADIENTFLOW_COMPLETE").source())
