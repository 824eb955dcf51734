"""``gradientflow netlab``: run a job across hosts that exist on this machine while it runs."""

from __future__ import annotations

from dataclasses import replace

import click

from gradientflow.cli.job import Job, run_job
from gradientflow.cli.run import executable
from gradientflow.cli.transport import (
    WHY_NOT_MPI,
    check_restarts,
    find_launcher_or_tcp,
    min_ranks_option,
    restart_option,
    transport_option,
    transport_without_mpi,
)
from gradientflow.launch import (
    OPEN_MPI,
    TcpJob,
    check_min_ranks,
    launch_environment,
    mpirun_command,
    rank_program,
    ranks_of_this_job,
    tcp_command,
)
from gradientflow.netlab import Netlab, NetlabError, end_leftovers, parse_link_down


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--hosts", type=int, metavar="N", help="Number of hosts to emulate.")
@click.option(
    "--rate",
    default="1gbit",
    show_default=True,
    metavar="RATE",
    help="Rate at which each host can send, as tc writes it, or none for no limit.",
)
@click.option(
    "--delay",
    default="0s",
    metavar="TIME",
    help="Delay of each message between hosts, such as 5ms (default: none).",
)
@click.option(
    "--ranks-per-host", type=int, default=1, show_default=True, metavar="K", help="Number of ranks on each host."
)
@min_ranks_option
@restart_option
@transport_option("without MPI")
@click.option("--shell", is_flag=True, help="Run COMMAND once, on no host: mpirun in it starts jobs on the hosts.")
@click.option(
    "--link-down",
    "links_down",
    multiple=True,
    metavar="HOST@SECONDS",
    help="Take the link of a host down at a time after the start (host1@2.5); may be repeated.",
)
@click.option("--clean", is_flag=True, help="End processes that killed netlabs have left, and do nothing else.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")
def netlab(
    hosts: int | None,
    rate: str,
    delay: str,
    ranks_per_host: int,
    min_ranks: int | None,
    restarts: int,
    transport: str,
    shell: bool,
    links_down: tuple[str, ...],
    clean: bool,
    program: tuple[str, ...],
) -> int:
    """Make N hosts on this machine, run COMMAND across them as a job, and remove them.

    Hosts have their own addresses and names (host0, host1, ...) and links of a limited rate. Needs root. The exit
    status is the job's; Ctrl-C ends all.
    """
    if clean:
        if program:
            raise NetlabError("--clean runs nothing: leave the command out")
        click.echo(f"processes ended: {end_leftovers()}")
        return 0
    if (outer := ranks_of_this_job()) is not None:
        raise NetlabError(f"this is already a rank of a job of {outer}: start netlab outside of it")
    if hosts is None or not program:
        raise NetlabError("say how many hosts to make and what to run, for example --hosts 2 -- hostname")
    lab = Netlab(hosts, rate, ranks_per_host, delay)
    downs = [parse_link_down(text, hosts) for text in links_down]
    command = executable(program, elsewhere=False)
    check_restarts(restarts, min_ranks)
    if min_ranks is not None:
        transport = transport_without_mpi("mpi" if shell else transport, "--min-ranks", WHY_NOT_MPI)
        check_min_ranks(min_ranks, lab.ranks)
    launcher = find_launcher_or_tcp("mpi" if shell else transport)
    if launcher is None:
        with lab:
            for host, seconds in downs:
                lab.take_link_down(host, seconds)
            meet = lab.hosts_of_ranks[0]
            job = TcpJob(command, lab.hosts_of_ranks, meet=meet, agent=lab.agent, min_ranks=min_ranks)
            job = replace(job, restarts=restarts, store_address="" if min_ranks is None else lab.launcher_address)
            return run_job(Job(lab.command(tcp_command(job)), lab.variables, reads_input=True))
    if launcher.library != OPEN_MPI:
        raise NetlabError(f"netlab starts jobs with Open MPI only, and {launcher.path} belongs to {launcher.library}")
    if not shell:
        command = rank_program(command, "host0", transport=transport)
        command = mpirun_command(launcher, lab.ranks, command, lab.slots)
    with lab:
        for host, seconds in downs:
            lab.take_link_down(host, seconds)
        environment = {**launch_environment(launcher), **lab.environment(launcher.version)}
        command = lab.command(command)
        return run_job(Job(command, environment, reads_input=True, is_mpi=not shell, starts_mpi=shell))
