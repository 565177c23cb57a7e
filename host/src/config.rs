//! What a host is asked to do, as validated values.
//!
//! Doors (the command line now) make one of these; nothing behind it sees a
//! string that could still be wrong.

use crate::component::{ReuseChoice, Source};
use crate::flags::Flags;
use crate::limits::Limits;
use crate::outgoing::policy::Policy;
use http::{HeaderName, HeaderValue};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

pub struct Config {
    pub listen: SocketAddr,
    /// A connection here starts a drain.
    pub shutdown: Option<SocketAddr>,
    pub apps: Vec<AppConfig>,
    pub request_headers: Vec<(HeaderName, HeaderValue)>,
    pub limits: Limits,
    pub flags: Arc<Flags>,
    pub logging_prefix: bool,
    pub allow_precompiled: bool,
    /// Printed below the first line: URLs worth trying, and what is open.
    pub notes: Vec<Note>,
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
    pub reuse: ReuseChoice,
}
