"""A small name server on loopback, for tests of reverse DNS."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

pytest.importorskip("dns")

import dns.flags
import dns.message
import dns.rcode
import dns.reversename
import dns.rrset

SILENT, FAILING = "silent", "failing"
"""Names that stand for no answer, and for an error of the server, of an address."""


class NameServer(socketserver.ThreadingUDPServer):
    """Answers from two mappings: address -> name, and name -> addresses. What it doesn't know doesn't exist.

    Attributes:
        questions: texts of the questions so far.
    """

    daemon_threads = True

    def __init__(self, pointers: Mapping[str, str], hosts: Mapping[str, list[str]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pointers = {
            dns.reversename.from_address(one).to_text(): name for one, name in pointers.items()
        }
        self.hosts = {f"{name}.": found for name, found in hosts.items()}
        self.questions: list[str] = []

    @property
    def address(self) -> str:
        """The address and port, as the guard's configuration has it."""
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        packet, socket = self.request
        query = dns.message.from_wire(packet)
        name = query.question[0].name.to_text().lower()
        kind = query.question[0].rdtype.name
        self.server.questions.append(f"{kind} {name}")
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        found = [f"{self.server.pointers[name]}."] if name in self.server.pointers else []
        if kind != "PTR":
            version = "." if kind == "A" else ":"
            found = [one for one in self.server.hosts.get(name, []) if version in one]
        if found == [f"{SILENT}."]:
            return
        if found == [f"{FAILING}."]:
            response.set_rcode(dns.rcode.SERVFAIL)
        elif found:
            response.answer.append(
                dns.rrset.from_text(query.question[0].name, 60, "IN", kind, *found)
            )
        elif name not in self.server.hosts:
            response.set_rcode(dns.rcode.NXDOMAIN)
        socket.sendto(response.to_wire(), self.client_address)


@contextmanager
def name_server(
    pointers: Mapping[str, str], hosts: Mapping[str, list[str]]
) -> Iterator[NameServer]:
    """Run a name server."""
    with NameServer(pointers, hosts) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
