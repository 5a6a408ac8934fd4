"""Which internet addresses are public, so that the service may call them for any user."""

from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

# All that is given away of IPv6 for the public internet.
GLOBAL = IPv6Network("2000::/3")
# Prefixes of it that hold an IPv4 address, which a gateway may call instead: 6to4 and Teredo.
GATEWAYS = (IPv6Network("2002::/16"), IPv6Network("2001::/32"))
# Addresses that count as public, and lead to services of a cloud or to a gateway.
SPECIAL = tuple(map(IPv4Network, ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24")))


def is_public(address: str) -> bool:
    """Return whether an address is reachable by everybody: not private, loopback or link-local.

    >>> [is_public(one) for one in ("93.184.216.34", "10.0.0.1", "169.254.169.254", "::1")]
    [True, False, False, False]
    >>> is_public("::ffff:127.0.0.1")
    False
    """
    parsed = ip_address(address)
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return is_public(str(parsed.ipv4_mapped))
        is_special = parsed not in GLOBAL or any(parsed in prefix for prefix in GATEWAYS)
    else:
        is_special = any(parsed in prefix for prefix in SPECIAL)
    return parsed.is_global and not parsed.is_multicast and not is_special
