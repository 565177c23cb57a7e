//! Names to addresses, without a thread: hickory's stub resolver, one for the
//! process, with its cache.

use super::Error;
use anyhow::Context as _;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use std::net::{IpAddr, SocketAddr};

/// Names whose answers are kept, each for its time to live.
const CACHED_NAMES: u64 = 1_024;

pub struct Resolver(TokioResolver);

impl Resolver {
    /// Asks `servers`, or those that `/etc/resolv.conf` names if there are
    /// none. `/etc/hosts` comes first in any case.
    ///
    /// # Errors
    /// `/etc/resolv.conf` cannot be read or understood.
    pub fn new(servers: &[SocketAddr]) -> anyhow::Result<Self> {
        let mut builder = if servers.is_empty() {
            TokioResolver::builder_tokio().context("cannot use /etc/resolv.conf")?
        } else {
            let servers = servers.iter().map(|address| {
                let mut server = NameServerConfig::udp_and_tcp(address.ip());
                for connection in &mut server.connections {
                    connection.port = address.port();
                }
                server
            });
            let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        };
        let options = builder.options_mut();
        options.cache_size = CACHED_NAMES;
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        Ok(Self(builder.build().context("cannot resolve names")?))
    }

    /// All addresses of `name`, which is taken as it is: no search domain is
    /// tried, so that what is asked for is what the policy has seen.
    pub async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, Error> {
        let absolute = format!("{name}.");
        match self.0.lookup_ip(absolute).await {
            Ok(found) => Ok(found.iter().collect()),
            Err(error) => Err(explain(name, &error)),
        }
    }
}

fn explain(name: &str, error: &NetError) -> Error {
    let code = match error {
        NetError::Timeout => return Error::DnsTimeout(name.into()),
        NetError::Dns(DnsError::NoRecordsFound(none)) => none.response_code,
        NetError::Dns(DnsError::ResponseCode(code)) => *code,
        other => {
            return Error::Dns {
                name: name.into(),
                rcode: other.to_string(),
            };
        }
    };
    match code {
        ResponseCode::NoError => Error::NoAddress(name.into()),
        // `NXDomain` is the NXDOMAIN of RFC 2136 section 2.2.
        code => Error::Dns {
            name: name.into(),
            rcode: format!("{code:?}").to_uppercase(),
        },
    }
}
