//! Where an outgoing request goes, in one spelling.
//!
//! Parses scheme and authority of a URL into values that compare equal when
//! they mean the same. What resolvers and other parsers could read in two ways
//! is refused, because the policy must judge what will be connected to.

use idna::AsciiDenyList;
use idna::uts46::{DnsLength, Hyphens, Uts46};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    /// In any case, RFC 3986 section 3.1.
    pub(super) fn parse(text: &str) -> Result<Self, BadDestination> {
        match text.to_ascii_lowercase().as_str() {
            "http" => Ok(Scheme::Http),
            "https" => Ok(Scheme::Https),
            _ => Err(BadDestination("the scheme is neither http nor https")),
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// RFC 9110 sections 4.2.1 and 4.2.2.
    pub fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// Where a request goes. Equal destinations are equal values, however they
/// were spelled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    pub scheme: Scheme,
    pub host: Host,
    /// Never 0; the scheme's default where the authority gives none.
    pub port: u16,
}

impl Destination {
    /// From the scheme and authority of a request's URL.
    ///
    /// # Errors
    /// [`BadDestination`] for what has no meaning or more than one: another
    /// scheme, user information, a bad port or name, an IPv6 zone, an IPv4
    /// address in octal, hexadecimal, as an integer or with parts left out.
    pub fn parse(scheme: &str, authority: &str) -> Result<Self, BadDestination> {
        let scheme = Scheme::parse(scheme)?;
        let (host, port) = split_port(authority)?;
        let host = Host::parse(host)?;
        let port = port.unwrap_or(scheme.default_port());
        Ok(Self { scheme, host, port })
    }

    /// The narrowest pattern that covers it.
    pub(super) fn as_pattern(&self) -> String {
        let scheme_and_host = format!("{}://{}", self.scheme.as_str(), self.host);
        if self.port == self.scheme.default_port() {
            return scheme_and_host;
        }
        format!("{scheme_and_host}:{}", self.port)
    }
}

/// With the port, default or not: `https://api.example.com:443`.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", self.scheme.as_str(), self.host, self.port)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// Lower case, in ASCII (`xn--…`), without a trailing dot; at most 253
    /// bytes, labels at most 63 (RFC 1035 section 2.3.4).
    Name(Box<str>),
    /// An IPv4 address is never in its IPv6 form.
    Address(IpAddr),
}

/// `_` is no part of a proper host name, but container tools make such names.
const NOT_IN_NAMES: AsciiDenyList = AsciiDenyList::new(true, "!\"#$%&'()*+,/:;<=>?@[\\]^`{|}~");

impl Host {
    pub(super) fn parse(text: &str) -> Result<Self, BadDestination> {
        if let Some(text) = text.strip_prefix('[') {
            return match text.strip_suffix(']').map(str::parse::<Ipv6Addr>) {
                Some(Ok(address)) => Ok(Host::Address(address.to_canonical())),
                _ => Err(BadDestination("in the brackets is no IPv6 address")),
            };
        }
        // Names before addresses: mapping makes plain digits and dots of
        // full-width ones (UTS #46).
        let (hyphens, length) = (Hyphens::Allow, DnsLength::VerifyAllowRootDot);
        let name = Uts46::new()
            .to_ascii(text.as_bytes(), NOT_IN_NAMES, hyphens, length)
            .map_err(|_| BadDestination("the host is neither a name nor an address"))?;
        let name = name.strip_suffix('.').unwrap_or(&name);
        match name.parse::<Ipv4Addr>() {
            Ok(address) => Ok(Host::Address(address.into())),
            // Resolvers take `127.1` and `0x7f000001` for addresses, and
            // disagree about `010.0.0.1`.
            Err(_) if ends_in_a_number(name) => Err(NOT_DECIMAL),
            Err(_) => Ok(Host::Name(name.into())),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name),
            Host::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// Why there is no such destination. The text repeats nothing of the URL,
/// which may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadDestination(pub(super) &'static str);

impl fmt::Display for BadDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for BadDestination {}

const NOT_DECIMAL: BadDestination = BadDestination("an IPv4 address is four decimal numbers");

/// Host and port of an authority (RFC 3986 section 3.2); empty is no port.
pub(super) fn split_port(authority: &str) -> Result<(&str, Option<u16>), BadDestination> {
    if authority.contains('@') {
        return Err(BadDestination(
            "user information before the host is refused",
        ));
    }
    let colon = match authority.rsplit_once(']') {
        Some((inside, after)) => after.rfind(':').map(|at| inside.len() + 1 + at),
        None => authority.rfind(':'),
    };
    let Some(colon) = colon else {
        return Ok((authority, None));
    };
    let (host, port) = (&authority[..colon], &authority[colon + 1..]);
    match number(port) {
        None if port.is_empty() => Ok((host, None)),
        None | Some(0) => Err(BadDestination("the port is not a number from 1 to 65535")),
        Some(port) => Ok((host, Some(port))),
    }
}

/// Digits alone: the standard parser takes a sign as well.
pub(super) fn number(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok())?
}

/// What a resolver may take for an IPv4 address
/// (<https://url.spec.whatwg.org/#ends-in-a-number-checker>).
fn ends_in_a_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    match last.strip_prefix("0x") {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => last.bytes().all(|byte| byte.is_ascii_digit()),
    }
}
