//! Which addresses anybody on the internet can have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns `true` for a public unicast address. Others reach this machine, its network, or the metadata service of a
/// cloud.
///
/// The registries of IANA for special-purpose addresses decide. An IPv6 address that carries an IPv4 address is as
/// public as that one.
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// Returns `true` for link-local addresses and for the metadata services of clouds, wherever those are. A metadata
/// service gives credentials of the machine to everybody on it.
pub fn is_link_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_link_local_v4(address),
        IpAddr::V6(address) => match address.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => is_link_local_v4(embedded(high, low)),
            // The metadata services of AWS and of Google Cloud.
            [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254] => true,
            [first, ..] => first & 0xffc0 == 0xfe80,
        },
    }
}

fn is_link_local_v4(address: Ipv4Addr) -> bool {
    // Link-local, and the metadata services of Azure, Alibaba Cloud and Oracle Cloud.
    matches!(address.octets(), [169, 254, ..] | [168, 63, 129, 16] | [100, 100, 100, 200] | [192, 0, 0, 192])
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !matches!(
        address.octets(),
        // "This network", which Linux takes for this machine; private; loopback; link-local, with metadata services.
        [0 | 10 | 127, ..] | [172, 16..=31, ..] | [192, 168, ..] | [169, 254, ..]
            // Shared by providers (CGNAT), with metadata services.
            | [100, 64..=127, ..]
            // Protocol assignments, documentation, the relays of 6to4, benchmarks.
            | [192, 0, 0 | 2, _] | [192, 88, 99, _] | [198, 18 | 19, ..] | [198, 51, 100, _] | [203, 0, 113, _]
            // Multicast, reserved, broadcast.
            | [224..=255, ..]
            // The metadata service of Azure.
            | [168, 63, 129, 16]
    )
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    match address.segments() {
        // NAT64 and 6to4.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => is_public_v4(embedded(high, low)),
        // Protocol assignments with Teredo, and documentation.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        // Only 2000::/3 is global unicast. The rest has loopback, unspecified, unique local, link-local and multicast
        // addresses.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

/// The IPv4 address in two segments of an IPv6 address.
fn embedded(high: u16, low: u16) -> Ipv4Addr {
    let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
    Ipv4Addr::new(a, b, c, d)
}
