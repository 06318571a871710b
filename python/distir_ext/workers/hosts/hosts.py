"""Describes the hosts of a session: addresses, devices, token and certificates."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from distir_ext.launch.introductions import start_limit, stated_place
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.wire.connections import parse_address
from distir_ext.wire.tokens import check_token
from distir_ext.workers.hosts.copies import join


@dataclass(frozen=True)
class Hosts:
    """Workers that are processes of several hosts, on each of which ``distir host`` runs.

    Devices are given to hosts in order: the first host has those with the lowest ids.

    Attributes:
        addresses: Address of ``distir host`` on each of them: ``"10.0.0.2"``,
            ``"10.0.0.2:7272"``, ``"[fd00::2]:7272"`` or a name. Hosts use the same addresses among
            themselves.
        devices_per_host: Number of devices of each host, or one number for all;
            None: equally many.
        token_file: A file that has the token; None: the environment variable ``DISTIR_EXT_TOKEN``,
            or the file that ``DISTIR_EXT_TOKEN_FILE`` names.
        tls: Whether connections are encrypted; None: those that leave the machine.
        certificate: A PEM file of this process's certificate; None: one is made. What connects is
            known by the token all the same.
        key: A PEM file of the certificate's private key.
        authority: A PEM file of who has to have signed the hosts' certificates, which then have to
            be for their addresses; None: the token will do.
        lost_after: After how many seconds without a sign a host or a connection counts as lost; at
            least 2.
        token: The token itself, in place of a file.
        fanout: To how many hosts the controller sends what it says, and each of them passes it on
            at most; None: to all of them up to 32, and beyond that to so many that there are two
            levels of hosts (docs/scale.md).
        names: Name of each in messages; None: their addresses.

    Raises:
        ValueError: no addresses, one of them twice or not an address, or numbers that make no
            sense.
    """

    addresses: Sequence[str]
    devices_per_host: Sequence[int] | int | None = None
    token_file: str | os.PathLike[str] | None = None
    lost_after: float = 20.0
    tls: bool | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    authority: str | os.PathLike[str] | None = None
    token: str | None = field(default=None, repr=False)
    fanout: int | None = None
    names: Sequence[str] | None = None

    @classmethod
    @short_tracebacks
    def from_env(
        cls,
        rank: int | None = None,
        size: int | None = None,
        address: str | None = None,
        token: str | None = None,
        timeout: float | None = None,
        ccl: str = "cpu",
    ) -> Hosts:
        """The copies of this script that a launcher has started, each of them a host.

        Rank 0 gets the hosts, for any number of sessions. On all other copies this does not return:
        they serve rank 0 until its process ends, then leave by SystemExit with its exit status (1
        if it has not said one). Without a launcher the only host is this process.

        What is not stated is that of :func:`distir_ext.launch.find_place`, and the token one that
        rank 0 makes, where the launcher hands it on (docs/clusters.md).

        Args:
            rank: Index of this copy.
            size: Number of copies.
            address: Of rank 0, for all copies.
            token: Token that all copies share.
            timeout: Time limit for all copies to start, in seconds; None: the
                environment variable ``DISTIR_EXT_START_TIMEOUT``, or 300.
            ccl: The communication library of the sessions. With ``"mpi"`` MPI is started in all
                copies, until they end.

        Raises:
            LauncherError: the environment contradicts itself, copies do not come in time, one of
                them ends, two of them say the same rank, rank 0 cannot listen, or MPI is asked for
                and cannot be used; says what was found.
            ValueError: there is no token, it can be guessed, or what is stated makes no sense.
            OSError: the file of the token cannot be read.
            SystemExit: this is not rank 0, which has ended.
        """
        place = stated_place(rank, size, address)
        joined = join(place, token, start_limit(timeout), ccl)
        return cls(joined.addresses, token=joined.token, names=joined.names)

    def __post_init__(self) -> None:
        if isinstance(self.addresses, str) or not self.addresses:
            raise ValueError(f"hosts are a list of addresses, not {self.addresses!r}")
        parsed = [parse_address(each) for each in self.addresses]
        for address, each in zip(self.addresses, parsed, strict=True):
            if parsed.count(each) > 1:
                raise ValueError(f'host "{address}" is given twice')
        if self.token is not None:
            if self.token_file is not None:
                raise ValueError("hosts are given both a token and a file of one")
            check_token(self.token, "of hosts")
        self._check_counts()
        if self.names is not None and len(self.names) != len(self.addresses):
            raise ValueError(f"{len(self.names)} names for {len(self.addresses)} hosts")
        if not 2 <= self.lost_after < math.inf:
            raise ValueError(f"lost_after is {self.lost_after!r}; it must be 2 seconds or more")
        if self.fanout is not None and (type(self.fanout) is not int or self.fanout < 1):
            raise ValueError(f"fanout is {self.fanout!r}; it must be a positive number of hosts")

    def _check_counts(self) -> None:
        given = self.devices_per_host
        if given is None:
            return
        counts = self._counts(given)
        is_right = len(counts) == len(self.addresses)
        if not is_right or any(type(count) is not int or count < 1 for count in counts):
            shown = given if isinstance(given, int | str) else list(counts)
            raise ValueError(
                f"devices_per_host is {shown!r}; it must have a positive number for each of "
                f"{len(self.addresses)} hosts, or be one for all"
            )

    def _counts(self, given: Sequence[int] | int) -> list[int]:
        if isinstance(given, int) and not isinstance(given, bool):
            return [given] * len(self.addresses)
        return list(given) if isinstance(given, Sequence) else []

    def ranks(self, num_workers: int) -> list[list[int]]:
        """Returns the ranks of each host's workers.

        Args:
            num_workers: Workers of the session, one per device.

        Returns:
            For each host in the order of ``addresses``, consecutive ranks: ``[[0, 1], [2, 3]]`` for
            4 workers on 2 hosts.

        Raises:
            ValueError: the hosts have not as many devices as there are workers, or these do not
                divide among the hosts.
        """
        if self.devices_per_host is not None:
            counts = self._counts(self.devices_per_host)
        else:
            share, rest = divmod(num_workers, len(self.addresses))
            if rest != 0:
                raise ValueError(
                    f"{num_workers} devices do not divide among {len(self.addresses)} hosts; state "
                    "devices_per_host"
                )
            counts = [share] * len(self.addresses)
        if sum(counts) != num_workers:
            raise ValueError(
                f"the hosts have {sum(counts)} devices {list(counts)}, the session has "
                f"{num_workers}"
            )
        begins = [sum(counts[:index]) for index in range(len(counts))]
        return [
            list(range(begin, begin + count)) for begin, count in zip(begins, counts, strict=True)
        ]
