//! The outgoing client: what a guest's own requests go through.
//!
//! One client per app. A request passes the egress policy, takes an idle
//! connection to its destination or opens one, and is sent; its response
//! streams back under a deadline for every wait. A connection whose response
//! was read to the end returns to the pool.
//!
//! Nothing here knows wasm: `wasi` hands requests in and turns [`Error`] into
//! the guest's `error-code`.

mod address;
mod body;
mod cdn_loop;
mod connect;
pub mod destination;
pub mod policy;
mod pool;
mod request;
pub mod resolve;
pub mod tls;

pub use body::{Interrupted, Pooled, Watched};
pub use cdn_loop::{MAX_PASSES, passes};
pub use pool::Bounds;

use crate::exchange::Exchange;
use crate::headers::{is_transfer_coded, remove_hop_by_hop};
use crate::limits::Limits;
use crate::suspension::Written;
use bytes::Bytes;
use connect::Connector;
use destination::Destination;
use http::header::{CONNECTION, HOST, HeaderValue, TE};
use hyper::body::Incoming;
use policy::Policy;
use pool::{Full, Lease, Pool, Ticket, Turn};
use request::{Handle, Sending};
use resolve::Resolver;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tls::Tls;
use tokio::time::{Instant, timeout};

/// Why a request to an upstream failed.
#[derive(Debug)]
pub enum Error {
    /// The URL is none that can be requested.
    Invalid(String),
    /// The egress policy forbids the destination.
    Denied(String),
    /// It permits the name, and no address that the name has.
    DeniedAddress(String),
    /// More passes through hosts like this one than [`MAX_PASSES`].
    Loop,
    DnsTimeout(String),
    Dns {
        name: String,
        /// Of the answer, or what else went wrong.
        rcode: String,
    },
    /// The name exists and has no address.
    NoAddress(String),
    Refused(std::io::Error),
    /// This machine has no port left for a connection to that address.
    NoLocalPort(SocketAddr),
    Connect(std::io::Error),
    ConnectTimeout,
    /// The app has as many connections as it may have, and none became free
    /// in time. Names the limit.
    ConnectionLimit(String),
    TlsCertificate(String),
    TlsAlert {
        id: u8,
        name: String,
    },
    TlsProtocol(String),
    FirstByteTimeout,
    BetweenBytesTimeout,
    /// The upstream closed the connection before its response was complete.
    Terminated(String),
    /// What the upstream sent is not HTTP.
    Protocol(String),
    /// The guest's own body ended in an error, so the request cannot be
    /// completed.
    RequestBody(String),
    /// The exchange that this request was made for is over.
    Cancelled,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Invalid(reason) => write!(f, "invalid URL: {reason}"),
            Error::Denied(reason) | Error::DeniedAddress(reason) => f.write_str(reason),
            Error::Loop => write!(f, "a loop: more than {MAX_PASSES} passes in CDN-Loop"),
            Error::DnsTimeout(name) => write!(f, "{name} not resolved in time"),
            Error::Dns { name, rcode } => write!(f, "{name} not resolved: {rcode}"),
            Error::NoAddress(name) => write!(f, "{name} has no address"),
            Error::Refused(error) => write!(f, "connection refused: {error}"),
            Error::NoLocalPort(address) => write!(
                f,
                "the local ports for connections to {address} are used up; \
                 net.ipv4.ip_local_port_range has more"
            ),
            Error::Connect(error) => write!(f, "connection failed: {error}"),
            Error::ConnectTimeout => f.write_str("no connection in time"),
            Error::ConnectionLimit(limit) => write!(f, "no connection became free: {limit}"),
            Error::TlsCertificate(reason) => write!(f, "certificate not accepted: {reason}"),
            Error::TlsAlert { name, .. } => write!(f, "TLS refused by the upstream: {name}"),
            Error::TlsProtocol(reason) => write!(f, "TLS failed: {reason}"),
            Error::FirstByteTimeout => f.write_str("no response in time"),
            Error::BetweenBytesTimeout => f.write_str("the response stopped half-way"),
            Error::Terminated(reason) => write!(f, "connection closed early: {reason}"),
            Error::Protocol(reason) => write!(f, "not HTTP: {reason}"),
            Error::RequestBody(reason) => write!(f, "request body failed: {reason}"),
            Error::Cancelled => f.write_str("the client of this request has gone"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Interrupted> for Error {
    fn from(interrupted: Interrupted) -> Self {
        match interrupted {
            Interrupted::BetweenBytes => Error::BetweenBytesTimeout,
            Interrupted::Cancelled => Error::Cancelled,
        }
    }
}

/// The deadlines of one request: the app's, shortened by the guest's.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    pub connect: Duration,
    pub first_byte: Duration,
    pub between_bytes: Duration,
}

impl Deadlines {
    pub fn new(limits: &Limits) -> Self {
        Self {
            connect: limits.connect,
            first_byte: limits.first_byte,
            between_bytes: limits.between_bytes,
        }
    }

    /// A guest may ask for less, never for more.
    pub fn shortened(
        self,
        connect: Option<Duration>,
        first_byte: Option<Duration>,
        between_bytes: Option<Duration>,
    ) -> Self {
        let least = |ours: Duration, theirs: Option<Duration>| theirs.map_or(ours, |t| t.min(ours));
        Self {
            connect: least(self.connect, connect),
            first_byte: least(self.first_byte, first_byte),
            between_bytes: least(self.between_bytes, between_bytes),
        }
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a guest's request body has to be.
pub trait RequestBody:
    http_body::Body<Data = Bytes, Error: Into<BoxError> + Send> + Send + Unpin + 'static
{
}

impl<B> RequestBody for B where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError> + Send> + Send + Unpin + 'static
{
}

/// What the clients of all apps share.
pub struct Shared {
    pub resolver: Arc<Resolver>,
    pub tls: Arc<Tls>,
    /// Plain destinations that are known to speak HTTP/2.
    pub prior_knowledge: HashSet<Destination>,
}

pub struct Client<B: RequestBody> {
    connector: Connector,
    pool: Arc<Pool<B>>,
    bounds: Bounds,
}

impl<B: RequestBody> Client<B> {
    pub fn new(policy: Arc<Policy>, shared: &Shared, bounds: Bounds) -> Self {
        Self {
            connector: Connector {
                policy,
                resolver: Arc::clone(&shared.resolver),
                tls: Arc::clone(&shared.tls),
                prior_knowledge: shared.prior_knowledge.clone(),
            },
            pool: Pool::new(bounds),
            bounds,
        }
    }

    /// Sends `request`, whose URI is absolute, on behalf of `exchange`.
    /// `written` tells when the guest has no more of its body to write for now,
    /// and `abandoned` that nobody waits for the response: then the request is
    /// sent to its end, and no longer waited for.
    ///
    /// # Errors
    /// See [`Error`]. After the response's head, errors come from its body.
    pub async fn send(
        &self,
        exchange: Arc<Exchange>,
        mut request: http::Request<B>,
        written: Written,
        abandoned: impl Future<Output = ()>,
        deadlines: Deadlines,
    ) -> Result<http::Response<Watched<Pooled<B>>>, Error> {
        let destination = destination(request.uri())?;
        self.connector
            .policy
            .check_name(&destination)
            .map_err(|denied| Error::Denied(denied.to_string()))?;
        cdn_loop::pass(request.headers_mut(), exchange.passes).ok_or(Error::Loop)?;
        let target = Target::of(&mut request)?;
        let (head, body) = request.into_parts();
        let (body, handle) = tokio::select! {
            biased;
            () = exchange.cancelled() => return Err(Error::Cancelled),
            held = Sending::hold(body, &written) => held,
        };
        let unwanted = async {
            abandoned.await;
            handle.over().await;
        };
        let request = http::Request::from_parts(head, body);
        let sent = self.exchange(&destination, &target, request, handle.clone(), deadlines);
        let (mut response, lease, handle) = tokio::select! {
            biased;
            () = exchange.cancelled() => return Err(Error::Cancelled),
            sent = sent => sent?,
            () = unwanted => return Err(Error::Cancelled),
        };
        if is_transfer_coded(response.headers()) {
            return Err(Error::Protocol("a transfer coding besides chunked".into()));
        }
        remove_hop_by_hop(response.headers_mut());
        Ok(response.map(|incoming| {
            let body = Pooled::new(incoming, lease, handle, deadlines.between_bytes);
            Watched::new(body, exchange, deadlines.between_bytes)
        }))
    }

    async fn exchange(
        &self,
        destination: &Destination,
        target: &Target,
        mut request: http::Request<Sending<B>>,
        handle: Handle<B>,
        deadlines: Deadlines,
    ) -> Result<(http::Response<Incoming>, Lease<B>, Handle<B>), Error> {
        let mut lease = self
            .connection(destination, deadlines.connect, true)
            .await?;
        let may_repeat = lease.is_reused() && request.method().is_idempotent();
        let again = may_repeat.then(|| copy_of_head(&request));
        target.apply(&mut request, lease.is_http2());
        let response = within(deadlines.first_byte, lease.send(request)).await;
        let (error, unsent) = match response.ok_or(Error::FirstByteTimeout)? {
            Ok(response) => return Ok((response, lease, handle)),
            Err(error) => error,
        };
        // An idle connection that the upstream had closed: once more, on a
        // fresh one.
        let (mut request, handle) = match (unsent, again) {
            (Some(unsent), _) => (unsent, handle),
            (None, Some(head)) if is_closed(&error) => match handle.untouched() {
                Some((body, handle)) => (head.map(|()| body), handle),
                None => return Err(classify(&error)),
            },
            (None, _) => return Err(classify(&error)),
        };
        drop(lease);
        let mut lease = self
            .connection(destination, deadlines.connect, false)
            .await?;
        target.apply(&mut request, lease.is_http2());
        let response = within(deadlines.first_byte, lease.send(request)).await;
        match response.ok_or(Error::FirstByteTimeout)? {
            Ok(response) => Ok((response, lease, handle)),
            Err((error, _)) => Err(classify(&error)),
        }
    }

    /// An idle connection, if `reuse`, or a new one, or one's turn, within one
    /// budget.
    async fn connection(
        &self,
        destination: &Destination,
        budget: Duration,
        reuse: bool,
    ) -> Result<Lease<B>, Error> {
        let deadline = Instant::now() + budget;
        let http2 = self.connector.prior_knowledge.contains(destination);
        loop {
            match self.pool.ask(destination, reuse, http2) {
                Turn::Reuse(lease) => return Ok(lease),
                Turn::Open(slot) => {
                    let connected = self.connector.connect(destination, slot, deadline);
                    return Ok(self.pool.opened(destination, connected.await?));
                }
                Turn::Wait(turn, full) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let turn = within(left, turn).await;
                    let turn = turn.ok_or_else(|| self.no_turn(full))?;
                    // An error is a turn as well: the queue has been dropped.
                    turn.into_iter().for_each(Ticket::take);
                }
            }
        }
    }

    fn no_turn(&self, full: Full) -> Error {
        let Bounds {
            per_destination,
            total,
            ..
        } = self.bounds;
        Error::ConnectionLimit(match full {
            Full::Opening => return Error::ConnectTimeout,
            Full::Destination => {
                format!("{per_destination} per destination (--max-connections-per-upstream)")
            }
            Full::Total => format!("{total} in total (--max-upstream-connections)"),
        })
    }
}

/// Where a request goes, in the words of HTTP/1 and of HTTP/2.
struct Target {
    absolute: http::Uri,
    /// Path and query alone, RFC 9112 section 3.2.1.
    origin_form: http::Uri,
    host: HeaderValue,
}

impl Target {
    /// Takes the guest's own `Host`, if there is one, which only some apps may
    /// set. Otherwise it is the authority, as the guest wrote it.
    fn of<B>(request: &mut http::Request<B>) -> Result<Self, Error> {
        let invalid = |text: &str, error: String| Error::Invalid(format!("{text}: {error}"));
        let uri = request.uri();
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = match path.strip_prefix('?') {
            Some(query) => &format!("/?{query}"),
            None => path,
        };
        let origin_form = path
            .parse()
            .map_err(|error: http::uri::InvalidUri| invalid(path, error.to_string()))?;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let host = HeaderValue::from_str(authority)
            .map_err(|error| invalid(authority, error.to_string()))?;
        let own = request.headers_mut().remove(HOST);
        let mut absolute = request.uri().clone().into_parts();
        if let Some(own) = &own {
            // HTTP/2 has one name for both, RFC 9113 section 8.3.1.
            let own = http::uri::Authority::try_from(own.as_bytes())
                .map_err(|error| invalid("Host", error.to_string()))?;
            absolute.authority = Some(own);
        }
        Ok(Self {
            origin_form,
            host: own.unwrap_or(host),
            absolute: http::Uri::from_parts(absolute)
                .map_err(|error| invalid("URI", error.to_string()))?,
        })
    }

    fn apply<B>(&self, request: &mut http::Request<B>, http2: bool) {
        if http2 {
            *request.uri_mut() = self.absolute.clone();
            *request.version_mut() = http::Version::HTTP_2;
            return;
        }
        *request.uri_mut() = self.origin_form.clone();
        *request.version_mut() = http::Version::HTTP_11;
        let te = request.headers().contains_key(TE);
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        if te {
            // RFC 9110 section 10.1.4: whoever sends TE says that it is meant
            // for this hop.
            headers.insert(CONNECTION, HeaderValue::from_static("te"));
        }
    }
}

fn copy_of_head<B>(request: &http::Request<B>) -> http::Request<()> {
    let mut copy = http::Request::new(());
    copy.method_mut().clone_from(request.method());
    copy.headers_mut().clone_from(request.headers());
    copy
}

/// Before a byte of the response came.
fn is_closed(error: &hyper::Error) -> bool {
    error.is_closed() || error.is_canceled() || error.is_incomplete_message() || is_reset(error)
}

fn is_reset(error: &hyper::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
    let source = std::error::Error::source(error);
    let io = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| matches!(io.kind(), ConnectionReset | BrokenPipe))
}

/// `None` when the time is up. No time at all is up at once, where tokio's
/// timer would round it up to a millisecond.
async fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    if time.is_zero() {
        return None;
    }
    timeout(time, future).await.ok()
}

fn destination(uri: &http::Uri) -> Result<Destination, Error> {
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(Error::Invalid(format!("{uri} names no host")));
    };
    Destination::parse(scheme, authority.as_str()).map_err(|bad| Error::Invalid(bad.to_string()))
}

fn classify(error: &hyper::Error) -> Error {
    if let Some(alert) = tls::alert(error) {
        return alert;
    }
    let cause = std::error::Error::source(error);
    let text = cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"));
    if error.is_user() {
        Error::RequestBody(text)
    } else if error.is_parse() || error.is_parse_too_large() {
        Error::Protocol(text)
    } else {
        Error::Terminated(text)
    }
}
