"""``skyphos split``: cut data into even partitions."""

from __future__ import annotations

import click

from ..errors import BadInput

__all__ = ["command"]


@click.command("split")
@click.argument("data", nargs=-1, required=True)
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--partitions", "-p", type=click.IntRange(1), required=True, help="Number of partitions.")
@click.option(
    "--format", type=click.Choice(["text", "npy", "parquet", "hdf5", "netcdf"]), help="Format, if not by DATA's suffix."
)
@click.option("--hosts", metavar="A,B,C", help="Hosts on which to place partitions, if these share no file system.")
@click.option("--replicas", type=click.IntRange(1), default=1, show_default=True, help="Hosts of each partition.")
def command(
    *, data: tuple[str, ...], folder: str, partitions: int, format: str | None, hosts: str | None, replicas: int
) -> None:
    """Cut DATA into even partitions, and list them in FOLDER/partitions.json.

    DATA is text (cut at ends of lines; also .gz, .bz2, .xz or .zst, whose parts are plain), .npy, Parquet, HDF5 or
    NetCDF (for these two, FILE:NAME selects a dataset; parts are .npy). Several files are cut one by one,
    each into its share of the partitions. A map-reduce job reads FOLDER/partitions.json.

    \b
    skyphos split points.npy parts --partitions 32
    skyphos split january.txt.gz february.txt.gz parts --partitions 32
    skyphos split book.txt parts --partitions 8 --hosts n1,n2,n3,n4 --replicas 2
    """
    from ..mapreduce import split
    from ..text.quantities import human_bytes

    names = [] if hosts is None else [name.strip() for name in hosts.split(",")]
    if not all(names):
        raise BadInput("--hosts: an empty name")
    parts = split(list(data), folder, partitions, format=format, hosts=names, replicas=replicas)
    sizes = sorted(part.bytes for part in parts)
    each = f"{human_bytes(sizes[0])} to {human_bytes(sizes[-1])} each"
    click.echo(
        f"{len(parts)} partitions of {parts.rows:,} rows, {human_bytes(parts.bytes)} in all, {each}: "
        f"{folder}/partitions.json"
    )
