"""The machine that a host leads to now: looked up and checked for each request.

The connection goes to exactly the address that was checked: a name that leads to a private machine
only later is refused then.
"""

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address

import httpx2

from overnight_server.outbound.addresses import AddressRefused, WebAddress, allowed_machines

# What is raised before a request is sent.
NOT_CONNECTED = (
    *(AddressRefused, socket.gaierror, UnicodeError),
    *(httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.InvalidURL),
)


async def find_machine(address: WebAddress, *, private_allowed: bool) -> str:
    """Return an address of the host that may be called; raise AddressRefused or gaierror."""
    machines = await _resolve(address)
    return allowed_machines(machines, private_allowed=private_allowed)[0]


def build_request(
    http: httpx2.AsyncClient,
    method: str,
    address: WebAddress,
    machine: str,
    *,
    content: bytes,
    headers: Mapping[str, str],
    seconds: float,
) -> httpx2.Request:
    """Return a request to one machine, which must prove that it is the host of the address.

    The client must follow no redirects, use no proxies of the environment, and keep no connection
    for another host: two hosts may be at one address.
    """
    return http.build_request(
        method,
        address.at(machine),
        content=content,
        headers={"Host": address.netloc, "Accept-Encoding": "identity", **headers},
        extensions={"sni_hostname": address.host},
        timeout=seconds,
    )


async def _resolve(address: WebAddress) -> list[str]:
    """Return the addresses of a host; raise gaierror if it has none."""
    with suppress(ValueError):
        return [str(ip_address(address.host))]
    loop = asyncio.get_running_loop()
    address_infos = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in address_infos]
