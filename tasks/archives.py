"""CacheArchive and UntarArchive: an archive of data or a checkpoint, verified and unpacked.

luigi --module tasks.archives UntarArchive --url https://example.org/data.tar.gz --sha256 ...
"""

from __future__ import annotations

from pathlib import Path

import luigi
from luigi.parameter import ParameterVisibility

from pipefit import archives
from tasks.targets import ArchiveTarget, UnpackedTarget


class ArchiveTask(luigi.Task):
    """A task about one archive."""

    # An address may hold a password, and it is the hash that says which archive this is.
    url = luigi.Parameter(
        significant=False,
        visibility=ParameterVisibility.PRIVATE,
        description="a path, or an address that fsspec knows",
    )
    sha256 = luigi.Parameter(description="of the archive, 64 hexadecimal digits")
    base = luigi.Parameter(
        default="",
        significant=False,
        description="where a relative path is looked for after the current folder",
    )

    @property
    def subject(self) -> str:
        """What it is about, for people."""
        return f"archive {self.sha256}"


class CacheArchive(ArchiveTask):
    """Fetches an archive into the cache; see `pipefit.archives.fetch`."""

    def output(self) -> ArchiveTarget:
        """The verified archive."""
        return ArchiveTarget(self.sha256)

    def run(self) -> None:
        """Fetch it."""
        archives.fetch(self.url, self.sha256, Path(self.base) if self.base else None)


class UntarArchive(ArchiveTask):
    """Unpacks an archive of the cache; see `pipefit.archives.unpack`."""

    max_bytes = luigi.IntParameter(
        default=0,
        significant=False,
        description="limit of the files together, however well they compress; 0: the usual limits",
    )
    max_members = luigi.IntParameter(
        default=0, significant=False, description="limit of files and folders; 0: the usual limit"
    )

    def requires(self) -> CacheArchive:
        """The archive in the cache."""
        return CacheArchive(url=self.url, sha256=self.sha256, base=self.base)

    def output(self) -> UnpackedTarget:
        """The folder of its files."""
        return UnpackedTarget(self.sha256)

    def run(self) -> None:
        """Unpack it."""
        limits = archives.Limits.of(total_bytes=self.max_bytes, members=self.max_members)
        archives.unpack(self.sha256, limits)
