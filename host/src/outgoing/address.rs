//! Ranges of addresses, and what sort of address one is.

use super::destination::{BadDestination, number};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

pub const NO_PATH: BadDestination =
    BadDestination("a pattern has no path, and a network no scheme");

/// A range of addresses; IPv4 lies at ::ffff:0:0/96.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    bits: u128,
    length: u32,
}

impl Network {
    pub fn only(address: IpAddr) -> Self {
        let (bits, length) = (bits(address), 128);
        Self { bits, length }
    }

    pub fn parse(text: &str) -> Result<Self, BadDestination> {
        let (address, length) = text.split_once('/').unwrap_or((text, ""));
        let Ok(address) = address.parse::<IpAddr>() else {
            return Err(NO_PATH);
        };
        let offset = if address.is_ipv4() { 96 } else { 0 };
        let length = match number(length).map(|length| u32::from(length) + offset) {
            Some(length @ ..=128) => length,
            _ => return Err(BadDestination("after the slash is no length of a network")),
        };
        let bits = bits(address);
        // `10.1.2.3/8` would permit far more than it seems to name.
        if bits.checked_shl(length).is_some_and(|beyond| beyond != 0) {
            return Err(BadDestination("the address has bits beyond the length"));
        }
        Ok(Self { bits, length })
    }

    pub fn contains(self, address: IpAddr) -> bool {
        let is_v4 = |bits: u128| bits >> 32 == 0xffff;
        let address = bits(address);
        let differing = (self.bits ^ address).checked_shr(128 - self.length);
        // `::/0` is every IPv6 address, and no IPv4 one.
        differing.unwrap_or(0) == 0 && is_v4(self.bits) == is_v4(address)
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reachable by everybody.
    Public,
    /// Of a private network: RFC 1918, RFC 4193.
    Private,
    Loopback,
    /// Everything else: link-local, metadata, multicast, reserved.
    Special,
}

/// The first row that fits decides; what is in none is special. From the IANA
/// registries of special-purpose addresses (RFC 6890), closed where they leave
/// a choice: Teredo and 6to4 are no longer run, and could lead inside.
const KINDS: [(Kind, &str); 12] = [
    (Kind::Loopback, "127.0.0.0/8 ::1/128"),
    // This network (Linux takes it for loopback), link-local with metadata.
    (Kind::Special, "0.0.0.0/8 169.254.0.0/16"),
    // Metadata inside other ranges: Azure, AWS, Google, Scaleway.
    (Kind::Special, "168.63.129.16/32 fd00:ec2::/32"),
    (Kind::Special, "fd20:ce::/32 fd00:42::/32"),
    // Carrier-grade NAT, protocol assignments (Teredo), 6to4.
    (Kind::Special, "100.64.0.0/10 192.0.0.0/24 2001::/23"),
    (Kind::Special, "192.88.99.0/24 2002::/16"),
    // Documentation and benchmarks.
    (Kind::Special, "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24"),
    (Kind::Special, "2001:db8::/32 3fff::/20 198.18.0.0/15"),
    // Multicast, reserved, broadcast.
    (Kind::Special, "224.0.0.0/3"),
    (Kind::Private, "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16"),
    (Kind::Private, "fc00::/7"),
    (Kind::Public, "0.0.0.0/0 2000::/3"),
];

static NETWORKS: LazyLock<Vec<(Network, Kind)>> = LazyLock::new(|| {
    let parse = |text| Network::parse(text).expect("KINDS lists networks");
    let row =
        |(kind, row): (Kind, &'static str)| row.split(' ').map(move |text| (parse(text), kind));
    KINDS.into_iter().flat_map(row).collect()
});

pub fn kind(address: IpAddr) -> Kind {
    let bits = bits(address);
    // NAT64, 64:ff9b::/96: the rest is the IPv4 address behind the translator,
    // which has to be a public one (RFC 6052 section 3.1).
    if bits >> 32 == 0x0064_ff9b << 64 {
        return match kind(Ipv4Addr::from_bits(bits as u32).into()) {
            Kind::Public => Kind::Public,
            Kind::Private | Kind::Loopback | Kind::Special => Kind::Special,
        };
    }
    let row = NETWORKS.iter().find(|row| row.0.contains(address));
    row.map_or(Kind::Special, |row| row.1)
}
