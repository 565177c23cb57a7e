//! What a host is asked to do, as validated values.
//!
//! Doors (the command line now) make one of these; nothing behind it sees a
//! string that could still be wrong.

use crate::component::{ReuseChoice, Source};
use crate::flags::Flags;
use crate::limits::Limits;
use crate::outgoing::destination::Destination;
use crate::outgoing::policy::Policy;
use crate::outgoing::tls::ClientCertificate;
use crate::tls::TlsConfig;
use http::{HeaderName, HeaderValue};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

pub struct Config {
    pub listen: SocketAddr,
    /// Plain where it is `None`.
    pub tls: Option<TlsConfig>,
    /// A connection here starts a drain.
    pub shutdown: Option<SocketAddr>,
    pub apps: Vec<AppConfig>,
    pub request_headers: Vec<(HeaderName, HeaderValue)>,
    pub limits: Limits,
    pub upstreams: Upstreams,
    pub flags: Arc<Flags>,
    pub logging_prefix: bool,
    pub allow_precompiled: bool,
    /// Printed below the first line: URLs worth trying, and what is open.
    pub notes: Vec<Note>,
}

/// What the outgoing clients of all apps share.
#[derive(Default)]
pub struct Upstreams {
    /// None asks those of the system.
    pub dns_servers: Vec<SocketAddr>,
    /// PEM files of roots that are trusted besides the usual ones.
    pub extra_roots: Vec<PathBuf>,
    pub client_certificates: Vec<ClientCertificate>,
    /// Plain destinations that are known to speak HTTP/2.
    pub http2: Vec<Destination>,
}

/// A line for whoever started the host.
pub enum Note {
    Text(String),
    /// A path below the address that is served.
    Try(&'static str),
}

pub struct AppConfig {
    pub name: Arc<str>,
    pub source: Source,
    /// Path prefixes; none makes the app reachable in process only.
    pub routes: Vec<String>,
    pub env: Vec<(String, String)>,
    pub dirs: Vec<(PathBuf, String)>,
    pub egress: Policy,
    /// Whether its guests may set `Host` to something else than the authority.
    pub may_set_host: bool,
    pub reuse: ReuseChoice,
}
