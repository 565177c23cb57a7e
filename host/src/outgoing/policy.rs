//! Which destinations a guest may reach: the pure egress decision.
//!
//! Values go in, a decision comes out; nothing here resolves, connects or
//! logs. A request passes twice: by name before DNS is asked (a query alone
//! can carry data out), then by each resolved address. A socket of
//! `wasi:sockets` passes once, by address.
//!
//! # Patterns
//!
//! | pattern | permits |
//! |---|---|
//! | `https://api.example.com` | this scheme, its default port |
//! | `http://10.0.0.5:8080`, `http://[fd00::5]` | this scheme, address and port |
//! | `api.example.com`, `10.0.0.5` | http on 80, https on 443 |
//! | `db.example.com:8443` | either scheme, this port |
//! | `*.example.com` | names below it at any depth, not itself; scheme and port as above |
//! | `10.0.0.0/8`, `fd00::/8` | these addresses, every scheme and port |
//! | `*` | every name, every public address, every scheme and port |
//! | `https://*`, `*.example.com:8443` | the same, narrowed |
//! | `http://APP.internal` | the app of that name, in process |
//!
//! # What a name may resolve to
//!
//! Whoever runs a name's DNS chooses its addresses, and may choose ours. The
//! usual rebinding (a harmless answer to the check, another to the connect)
//! has no room here, because the checked address is the one connected to.
//! What remains is a first answer that points inside, so a pattern is worth
//! as much as the operator knows about the names that it covers:
//!
//! - `*` and `*.example.com` cover names that nobody has looked at, perhaps an
//!   attacker's own. They reach public addresses only.
//! - An exact name was chosen by the operator, often one of a private network
//!   (`http://foo:8080`). It reaches public and private addresses (RFC 1918,
//!   RFC 4193) on its scheme and port. Its DNS is trusted that far; with
//!   https, the certificate has to match as well.
//! - `localhost` and names below it mean loopback (RFC 6761 section 6.3), so
//!   listing one permits that too.
//! - All else (other names of loopback, link-local, cloud metadata, shared
//!   address space, multicast, reserved) has to be listed as an address or a
//!   network **besides** the name: no name is reason enough to hand out the
//!   machine's own services or credentials.
//!
//! A listed address permits no name that resolves to it: both are checked. An
//! IPv4 address inside an IPv6 one (RFC 4291 section 2.5.5.2) is that IPv4
//! address. A network's own NAT64 prefix cannot be told from public addresses.

use super::address::{Kind, NO_PATH, Network, kind};
use super::destination::{BadDestination, Destination, Host, Scheme, split_port};
use anyhow::ensure;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

/// What one app may reach. Its checks fail with [`Denied`] when no pattern
/// covers what is asked for.
#[derive(Clone, Debug)]
pub struct Policy {
    /// `None` permits everything.
    rules: Option<Vec<Rule>>,
}

impl Policy {
    /// Permits everything, loopback and metadata included: for developers.
    pub fn open() -> Self {
        Self { rules: None }
    }

    /// Permits nothing, apps in process included.
    pub fn closed() -> Self {
        let rules = Some(Vec::new());
        Self { rules }
    }

    /// Permits what at least one of `patterns` does; none at all is
    /// [`Policy::closed`].
    ///
    /// # Errors
    /// One line for every bad pattern: the pattern, the reason, right ones.
    pub fn parse<S: AsRef<str>>(patterns: &[S]) -> anyhow::Result<Self> {
        const EXAMPLES: &str = "like `https://api.example.com`, `*.example.com`, `10.0.0.0/8`";
        let mut rules = Vec::with_capacity(patterns.len());
        let mut problems = Vec::new();
        for pattern in patterns.iter().map(AsRef::as_ref) {
            match Rule::parse(pattern) {
                Ok(rule) => rules.push(rule),
                Err(bad) => problems.push(format!(
                    "egress pattern `{pattern}`: {bad}; write one {EXAMPLES}"
                )),
            }
        }
        ensure!(problems.is_empty(), problems.join("\n"));
        Ok(Self { rules: Some(rules) })
    }

    /// Whether everything is permitted.
    pub fn is_open(&self) -> bool {
        self.rules.is_none()
    }

    /// Step 1, before DNS: may this destination be asked for at all? For an
    /// address it is the whole decision.
    pub fn check_name(&self, destination: &Destination) -> Result<(), Denied> {
        let scheme = Some(destination.scheme);
        let allowed = self.any(scheme, destination.port, |rule| match &destination.host {
            Host::Name(name) => rule.names(name),
            Host::Address(address) => rule.reaches(*address, None),
        });
        if allowed {
            return Ok(());
        }
        Err(Denied::new(destination, destination.as_pattern()))
    }

    /// Step 2, for every resolved address: connect only to those that pass.
    /// Step 1 is part of it, so that leaving that out opens nothing.
    pub fn check_address(&self, destination: &Destination, address: IpAddr) -> Result<(), Denied> {
        self.check_name(destination)?;
        let (scheme, port) = (destination.scheme, destination.port);
        let name = match &destination.host {
            Host::Name(name) => Some(name.as_ref()),
            Host::Address(_) => None,
        };
        if self.any(Some(scheme), port, |rule| rule.reaches(address, name)) {
            return Ok(());
        }
        let host = Host::Address(address.to_canonical());
        let pattern = Destination { scheme, host, port }.as_pattern();
        let what = format_args!("{destination} at {address}");
        Err(Denied::new(what, pattern))
    }

    /// A raw TCP or UDP peer. What is listed as an address counts, whatever
    /// its scheme; names count for nothing, because none is known.
    pub fn check_socket(&self, address: SocketAddr) -> Result<(), Denied> {
        // Made anew to print without an IPv6 zone, which no pattern can have.
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        let is_listed = |rule: &Rule| rule.reaches(address.ip(), None);
        if self.any(None, address.port(), is_listed) {
            return Ok(());
        }
        Err(Denied::new(address, address))
    }

    /// The app named `app`, called in process as `http://APP.internal`. `*`
    /// does not cover it: that opens nothing that is not public already.
    pub fn check_internal(&self, app: &str) -> Result<(), Denied> {
        let name = format!("{app}.internal").to_ascii_lowercase();
        let scheme = Scheme::Http;
        let is_named = |rule: &Rule| !matches!(rule.target, Target::Public) && rule.names(&name);
        if self.any(Some(scheme), scheme.default_port(), is_named) {
            return Ok(());
        }
        let url = format_args!("http://{name}");
        Err(Denied::new(url, url))
    }

    fn any(&self, scheme: Option<Scheme>, port: u16, test: impl Fn(&Rule) -> bool) -> bool {
        let permits = |rule: &Rule| rule.admits(scheme, port) && test(rule);
        self.rules.as_ref().is_none_or(|r| r.iter().any(permits))
    }
}

/// Why a destination is not reached, in one sentence for the guest and the
/// log: what was asked for, and the pattern that would permit it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied(String);

impl Denied {
    fn new(what: impl fmt::Display, pattern: impl fmt::Display) -> Self {
        let remedy = format_args!("--egress {pattern} would allow it");
        Self(format!("egress to {what} is not allowed; {remedy}"))
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Denied {}

/// One pattern. A scheme that it excludes has no ports.
#[derive(Clone, Debug)]
struct Rule {
    http: RangeInclusive<u16>,
    https: RangeInclusive<u16>,
    target: Target,
}

#[derive(Clone, Debug)]
enum Target {
    Public,
    Below(Box<str>),
    Name(Box<str>),
    Network(Network),
}

impl Rule {
    fn parse(pattern: &str) -> Result<Self, BadDestination> {
        let (scheme, rest) = match pattern.split_once("://") {
            Some((scheme, rest)) => (Some(Scheme::parse(scheme)?), rest),
            None => (None, pattern),
        };
        let (target, port) = match (scheme, rest.split_once('/')) {
            (None, Some(_)) => (Target::Network(Network::parse(rest)?), Some(0..=u16::MAX)),
            (Some(_), Some((authority, ""))) => Target::parse(authority)?,
            (Some(_), Some(_)) => return Err(NO_PATH),
            (_, None) => Target::parse(rest)?,
        };
        let ports = |of: Scheme| match (scheme, &port) {
            (Some(other), _) if other != of => RangeInclusive::new(1, 0),
            (_, Some(ports)) => ports.clone(),
            (None, None) if matches!(target, Target::Public) => 0..=u16::MAX,
            (_, None) => of.default_port()..=of.default_port(),
        };
        let (http, https) = (ports(Scheme::Http), ports(Scheme::Https));
        Ok(Self {
            http,
            https,
            target,
        })
    }

    /// Without a scheme it is a socket, which may speak either.
    fn admits(&self, scheme: Option<Scheme>, port: u16) -> bool {
        match scheme {
            Some(Scheme::Http) => self.http.contains(&port),
            Some(Scheme::Https) => self.https.contains(&port),
            None => self.http.contains(&port) || self.https.contains(&port),
        }
    }

    fn names(&self, name: &str) -> bool {
        match &self.target {
            Target::Public => true,
            Target::Below(domain) => {
                let rest = name.strip_suffix(domain.as_ref());
                rest.is_some_and(|rest| rest.ends_with('.'))
            }
            Target::Name(exact) => **exact == *name,
            Target::Network(_) => false,
        }
    }

    /// Whether `address` is permitted, as one of `name` if there is a name.
    fn reaches(&self, address: IpAddr, name: Option<&str>) -> bool {
        let is_named = name.is_some_and(|name| self.names(name));
        match (&self.target, kind(address)) {
            (Target::Network(network), _) => network.contains(address),
            (Target::Public, kind) => kind == Kind::Public,
            (Target::Below(_), kind) => is_named && kind == Kind::Public,
            (Target::Name(_), Kind::Public | Kind::Private) => is_named,
            (Target::Name(name), Kind::Loopback) => is_named && is_localhost(name),
            (Target::Name(_), Kind::Special) => false,
        }
    }
}

fn is_localhost(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

impl Target {
    /// Takes a port along, if one is given.
    fn parse(text: &str) -> Result<(Self, Option<RangeInclusive<u16>>), BadDestination> {
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Ok((Target::Network(Network::only(address.into())), None));
        }
        let (host, port) = split_port(text)?;
        let target = match host.strip_prefix('*') {
            Some("") => Target::Public,
            Some(below) => match below.strip_prefix('.').map(Host::parse) {
                Some(Ok(Host::Name(domain))) => Target::Below(domain),
                _ => return Err(BadDestination("after an asterisk comes a dot and a name")),
            },
            None => match Host::parse(host)? {
                Host::Name(name) => Target::Name(name),
                Host::Address(address) => Target::Network(Network::only(address)),
            },
        };
        Ok((target, port.map(|port| port..=port)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Patterns; URL, peer or app; the address if DNS is asked; what becomes
    /// of it: `yes`, denied by `name`, denied at the `addr`ess, or no
    /// destination at all (`bad`).
    const DECISIONS: &str = "
        https://api.example.com  https://api.example.com        93.184.216.34    yes
        https://api.example.com  https://API.Example.COM        93.184.216.34    yes
        HTTPS://Api.Example.Com. HTTPS://api.example.com        93.184.216.34    yes
        https://api.example.com  https://api.example.com.       93.184.216.34    yes
        https://api.example.com  https://api.example.com..      -                bad
        https://api.example.com  https://api.example.com:443    93.184.216.34    yes
        https://api.example.com  https://api.example.com:0443   93.184.216.34    yes
        https://api.example.com  https://api.example.com:444    -                name
        https://api.example.com  http://api.example.com         -                name
        https://api.example.com  https://example.com            -                name
        https://api.example.com  https://api.example.com.evil.net -              name
        https://api.example.com  https://93.184.216.34          -                name
        https://api.example.com  ftp://api.example.com          -                bad
        https://api.example.com  https://api.example.com@evil.net -              bad
        https://api.example.com  https://u:p@api.example.com    -                bad
        https://api.example.com  https://api.example.com:+443   -                bad
        https://api.example.com  https://api.example.com:65979  -                bad
        https://api.example.com  https://api.example.com:0      -                bad
        https://api.example.com  https://api.example.com:443:443 -               bad
        https://api.example.com  https://api.example.com\\.evil.net -            bad
        https://api.example.com  https://                       -                bad
        https://api.example.com  https://ａｐｉ．example。com     93.184.216.34    yes
        https://xn--bcher-kva.example https://BÜCHER.example.   93.184.216.34    yes
        https://bücher.example   https://bucher.example         -                name
        https://apple.com        https://аpple.com              -                name
        *                        https://xn--a.example          -                bad
        *                        https://a_b.example            93.184.216.34    yes
        api.example.com          http://api.example.com         93.184.216.34    yes
        api.example.com          https://api.example.com        93.184.216.34    yes
        api.example.com:8443     http://api.example.com:8443    93.184.216.34    yes
        api.example.com:8443     https://api.example.com        -                name
        *.example.com            https://a.example.com          93.184.216.34    yes
        *.EXAMPLE.com.           http://a.b.example.com.        93.184.216.34    yes
        *.example.com            https://a.example.com:8443     -                name
        https://*.example.com    http://a.example.com           -                name
        *.example.com            https://example.com            -                name
        *.example.com            https://evilexample.com        -                name
        *.example.com            https://a.example.com          10.0.0.5         addr
        *.example.com            https://a.example.com          127.0.0.1        addr
        *.example.com,10.0.0.0/8 https://a.example.com          10.0.0.5         yes
        *.example.com,http://10.0.0.5 https://a.example.com     10.0.0.5         addr
        http://foo:8080          http://FOO:8080                192.168.3.4      yes
        http://foo:8080          http://foo:8080                fd12::1          yes
        http://foo:8080          http://foo:8080                ::ffff:10.0.0.1  yes
        http://foo:8080          http://foo:8080                127.0.0.1        addr
        http://foo:8080          http://foo:8080                169.254.169.254  addr
        http://foo:8080          http://foo:8080                fd00:ec2::254    addr
        http://foo:8080          http://foo:8080                64:ff9b::10.0.0.1 addr
        http://foo:8080          http://foo:8080                100.64.0.1       addr
        http://foo:8080          http://foo:8080                0.0.0.0          addr
        http://foo:8080,169.254.0.0/16 http://foo:8080          169.254.169.254  yes
        http://foo:8080          http://foo                     -                name
        http://localhost:8080    http://LocalHost.:8080         127.0.0.1        yes
        http://localhost:8080    http://localhost:8080          ::1              yes
        http://localhost:8080    http://localhost:8080          0.0.0.0          addr
        http://localhost:8080    http://127.0.0.1:8080          -                name
        http://notlocalhost      http://notlocalhost            127.0.0.1        addr
        http://10.0.0.5:8080     http://10.0.0.5:8080           -                yes
        http://10.0.0.5:8080     http://10.0.0.5.:8080          -                yes
        http://10.0.0.5:8080     http://[::ffff:10.0.0.5]:8080  -                yes
        http://10.0.0.5:8080     http://10.0.0.5                -                name
        http://10.0.0.5:8080     http://foo:8080                -                name
        10.0.0.5                 https://10.0.0.5               -                yes
        10.0.0.5                 https://10.0.0.5:8443          -                name
        10.0.0.0/8               https://10.255.255.255:8443    -                yes
        10.0.0.0/8               http://[64:ff9b::10.0.0.1]     -                name
        10.0.0.0/8               http://foo                     -                name
        ::ffff:10.0.0.0/104      http://10.9.9.9                -                yes
        ::/0                     http://[::1]:9                 -                yes
        ::/0                     http://127.0.0.1               -                name
        0.0.0.0/0                http://127.0.0.1               -                yes
        http://[fd00::5]:80      http://[FD00:0:0::5]           -                yes
        *                        https://anything.example:8443  93.184.216.34    yes
        *                        http://rebound.example         127.0.0.1        addr
        *                        http://rebound.example         ::ffff:127.0.0.1 addr
        *                        http://localhost               127.0.0.1        addr
        *                        http://127.0.0.1               -                name
        *                        http://0177.0.0.1              -                bad
        *                        http://2130706433              -                bad
        *                        http://0x7f000001              -                bad
        *                        http://0X7F.0.0.1.             -                bad
        *                        http://127.1                   -                bad
        *                        http://127.0.0.0x1             -                bad
        *                        http://1.2.3.4.5               -                bad
        *                        http://１２７．1               -                bad
        *                        http://[fe80::1%25eth0]        -                bad
        *                        http://[127.0.0.1]             -                bad
        *                        http://[::1                    -                bad
        *                        http://[::1]x:80               -                bad
        *                        http://::1                     -                bad
        *,127.0.0.0/8            http://localhost:8080          127.0.0.1        yes
        *                        socket://93.184.216.34:25       -                yes
        *                        socket://[::ffff:127.0.0.1]:25  -                name
        *                        socket://0.0.0.0:0              -                name
        10.0.0.0/8               socket://10.0.0.5:5432          -                yes
        10.0.0.5:5432            socket://10.0.0.5:5432          -                yes
        10.0.0.5:5432            socket://10.0.0.5:5433          -                name
        http://10.0.0.5:8080     socket://10.0.0.5:8080          -                yes
        10.0.0.5                 socket://10.0.0.5:443           -                yes
        10.0.0.5                 socket://10.0.0.5:22            -                name
        http://localhost         socket://127.0.0.1:80           -                name
        *.example.com            socket://93.184.216.34:443      -                name
        http://remote.internal   app://remote                    -                yes
        HTTP://Remote.INTERNAL:80/ app://REMOTE                  -                yes
        *.internal               app://remote                    -                yes
        http://remote.internal   app://other                     -                name
        https://remote.internal  app://remote                    -                name
        *,0.0.0.0/0              app://remote                    -                name
    ";

    fn rows() -> impl Iterator<Item = [&'static str; 4]> {
        let rows = DECISIONS.lines().map(str::split_whitespace);
        rows.filter_map(|row| row.collect::<Vec<_>>().try_into().ok())
    }

    fn decide(policy: &Policy, url: &str, address: &str) -> (&'static str, String) {
        let (scheme, rest) = url.split_once("://").unwrap();
        let checked = match scheme {
            "socket" => policy.check_socket(rest.parse().unwrap()),
            "app" => policy.check_internal(rest),
            _ => {
                let destination = match Destination::parse(scheme, rest) {
                    Ok(destination) => destination,
                    Err(bad) => return ("bad", bad.to_string()),
                };
                let address = match destination.host {
                    Host::Address(address) => address,
                    Host::Name(_) => address.parse().unwrap_or([93, 184, 216, 34].into()),
                };
                let by_address = policy.check_address(&destination, address);
                if let (Ok(()), Err(denied)) = (policy.check_name(&destination), &by_address) {
                    return ("addr", denied.to_string());
                }
                by_address
            }
        };
        match checked {
            Ok(()) => ("yes", String::new()),
            Err(denied) => ("name", denied.to_string()),
        }
    }

    fn policy(patterns: &str) -> Policy {
        Policy::parse(&patterns.split(',').collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn the_table_decides() {
        assert_eq!(rows().count(), DECISIONS.trim().lines().count());
        for [patterns, url, address, expected] in rows() {
            let (decision, reason) = decide(&policy(patterns), url, address);
            assert_eq!(decision, expected, "{patterns} {url} {address}: {reason}");
            let [open, closed] = match expected {
                "bad" => ["bad", "bad"],
                _ => ["yes", "name"],
            };
            assert_eq!(decide(&Policy::open(), url, address).0, open, "{url}");
            assert_eq!(decide(&Policy::closed(), url, address).0, closed, "{url}");
        }
    }

    #[test]
    fn the_pattern_that_a_denial_offers_is_the_one_that_lacks() {
        // Port 0 is nothing that a pattern can name.
        for [patterns, url, address, _] in rows().filter(|row| !row[1].ends_with(":0")) {
            let (_, reason) = decide(&policy(patterns), url, address);
            if let Some((_, offer)) = reason.split_once("--egress ") {
                let offered = offer.strip_suffix(" would allow it").unwrap();
                let more = policy(&format!("{patterns},{offered}"));
                assert_eq!(decide(&more, url, address).0, "yes", "{patterns}: {reason}");
            }
        }
    }

    #[test]
    fn a_denial_names_destination_address_and_remedy() {
        for (url, what, remedy) in [
            ("http://10.0.0.5", "http://10.0.0.5:80", "http://10.0.0.5"),
            (
                "http://A.b:1",
                "http://a.b:1 at fd00::1",
                "http://[fd00::1]:1",
            ),
            ("socket://[::1]:25", "[::1]:25", "[::1]:25"),
            (
                "socket://[::ffff:7f00:1]:25",
                "127.0.0.1:25",
                "127.0.0.1:25",
            ),
            ("app://Foo", "http://foo.internal", "http://foo.internal"),
        ] {
            let (_, sentence) = decide(&policy("*"), url, "fd00::1");
            let (start, end) = sentence.split_once(" is not allowed; ").unwrap();
            assert_eq!(start, format!("egress to {what}"));
            assert_eq!(end, format!("--egress {remedy} would allow it"));
        }
    }

    const ADDRESSES: &str = "
        Public   1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 172.15.255.255 172.32.0.0
        Public   192.167.255.255 223.255.255.255 2606:4700::1111 ::ffff:1.1.1.1 64:ff9b::1.1.1.1
        Private  10.0.0.0 10.255.255.255 172.16.0.0 172.31.255.255 192.168.0.0 192.168.255.255
        Private  fc00:: fdff:ffff:: ::ffff:10.0.0.1
        Loopback 127.0.0.1 127.255.255.255 ::1 ::ffff:127.0.0.1
        Special  0.0.0.0 0.255.255.255 :: ::ffff:0.0.0.0 169.254.0.0 169.254.169.254 ::ffff:a9fe:a9fe
        Special  fe80::1 febf::1 168.63.129.16 fd00:ec2::254 fd20:ce::254 fd00:42::42 100.64.0.0
        Special  100.100.100.200 100.127.255.255 192.0.0.192 2001::1 2001:0:4136:e378:8000:63bf:1:1
        Special  192.0.2.1 198.51.100.1 203.0.113.1 2001:db8::1 3fff:fff::1 198.18.0.0 198.19.255.255
        Special  192.88.99.1 2002:7f00:1:: 2002:101:101::1 224.0.0.1 239.255.255.255 240.0.0.0
        Special  255.255.255.255 ff02::1 ::127.0.0.1 ::ffff:0:127.0.0.1 64:ff9b:1::7f00:1 100::1
        Special  1fff::1 4000::1 5f00::1 fec0::1 64:ff9b::127.0.0.1 64:ff9b::a9fe:a9fe 64:ff9b::a00:1
    ";

    #[test]
    fn every_address_has_its_kind() {
        for row in ADDRESSES.trim().lines() {
            let (expected, addresses) = row.trim().split_once(' ').unwrap();
            for address in addresses.split_whitespace() {
                let kind = kind(address.parse().unwrap());
                assert_eq!(format!("{kind:?}"), expected, "{address}");
            }
        }
    }

    #[test]
    fn every_bad_pattern_is_reported_in_a_line_of_its_own() {
        let bad = "ftp://a ://a https:// https://a/b http://10.0.0.0/8 a/b 10.0.0.0/33 10.0.0.0/ \
            10.0.0.0/+8 10.0.0.1/8 10.1/16 ::ffff:0:0/80 ::/129 [fd00::]/8 a:0 a:65536 a:b u@a ** *a \
            *. *.*.a a.* *.10.0.0.1 017.0.0.1 a..b [::1";
        let bad: Vec<_> = bad.split_whitespace().chain(["", " ", "a b"]).collect();
        let patterns = [&bad[..], &["https://fine.example"]].concat();
        let error = Policy::parse(&patterns).unwrap_err().to_string();
        assert_eq!(error.lines().count(), bad.len(), "{error}");
        for (line, pattern) in error.lines().zip(bad) {
            let start = format!("egress pattern `{pattern}`: ");
            assert!(line.starts_with(&start), "{line}");
            assert!(line.contains("; write one like `https://"), "{line}");
        }
    }

    #[test]
    fn a_destination_has_one_spelling() {
        for (scheme, authority, spelling) in [
            ("HTTPS", "Api.Example.COM.", "https://api.example.com:443"),
            (
                "http",
                "BÜCHER.example:080",
                "http://xn--bcher-kva.example:80",
            ),
            ("http", "10.0.0.5.:", "http://10.0.0.5:80"),
            ("http", "[::FFFF:10.0.0.5]:8080", "http://10.0.0.5:8080"),
            ("https", "[FD00:0::05]", "https://[fd00::5]:443"),
        ] {
            let destination = Destination::parse(scheme, authority).unwrap();
            assert_eq!(destination.to_string(), spelling);
            let (scheme, authority) = spelling.split_once("://").unwrap();
            assert_eq!(Destination::parse(scheme, authority), Ok(destination));
        }
        let reason = Destination::parse("http", "user:secret@a")
            .unwrap_err()
            .to_string();
        assert!(reason.starts_with("user information") && !reason.contains("secret"));
    }

    #[test]
    fn names_are_bounded() {
        let fits = |lengths: &[usize], end: &str| {
            let labels: Vec<_> = lengths.iter().map(|length| "a".repeat(*length)).collect();
            Destination::parse("https", &(labels.join(".") + end)).is_ok()
        };
        assert!(fits(&[63], "") && !fits(&[64], ""));
        assert!(fits(&[63, 63, 63, 61], "") && !fits(&[63, 63, 63, 62], ""));
        assert!(fits(&[63, 63, 63, 61], "."));
    }
}
