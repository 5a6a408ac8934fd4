"""Which internet addresses are public, so that the service may call them for any user."""

from ipaddress import IPv4Address, IPv6Network, ip_address

# Prefixes that hold an IPv4 address, which a gateway may call instead: NAT64, 6to4 and Teredo.
GATEWAYS = tuple(map(IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")))


def is_public(address: str) -> bool:
    """Return whether an address is reachable by everybody: not private, loopback or link-local.

    >>> [is_public(one) for one in ("93.184.216.34", "10.0.0.1", "169.254.169.254", "::1")]
    [True, False, False, False]
    >>> is_public("::ffff:127.0.0.1")
    False
    """
    parsed = ip_address(address)
    if not isinstance(parsed, IPv4Address):
        if parsed.ipv4_mapped is not None:
            return is_public(str(parsed.ipv4_mapped))
        if any(parsed in prefix for prefix in GATEWAYS):
            return False
    return parsed.is_global and not parsed.is_multicast
